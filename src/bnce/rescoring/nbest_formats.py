"""The formats of n-best lists, which `bnce rescore --format` chooses."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NBestFormat:
    """One format. The module has `read`, of a `Source` (and of the files of scores, if these are apart).

    Beside it, `recognise` tells from a `Source` whether it has this format.
    """

    shown: str
    module: str
    endings: tuple[str, ...] = ()  # of file names, packing aside, that are of this format
    scores_apart: bool = False  # whether scores are in files of their own

    def load(self, name: str) -> Any:
        """Import a function of the module."""
        return pkgutil.resolve_name(f"bnce.rescoring.formats.{self.module}:{name}")


# In the order in which they are tried: Kaldi text, which is what anything may be, comes last.
NBEST_FORMATS = {
    "espnet": NBestFormat("an ESPnet decode directory", "espnet"),
    "jsonl": NBestFormat("JSON lines", "json_lines", endings=(".jsonl", ".json", ".ndjson")),
    "tsv": NBestFormat("TSV", "table", endings=(".tsv",)),
    "kaldi": NBestFormat("Kaldi text", "kaldi", scores_apart=True),
}
