"""The formats of n-best lists, which `bnce rescore --format` chooses."""

from __future__ import annotations

from dataclasses import dataclass

from bnce.kinds.kind import Kind, Registry, load


@dataclass(frozen=True, kw_only=True)
class NBestFormat(Kind):
    """One format. It is read by a function of a `Source`, and of the files of scores if these are apart.

    Beside that one, `recognise` tells from a `Source` whether it has this format.
    """

    endings: tuple[str, ...] = ()  # of file names, packing aside, that are of this format
    scores_apart: bool = False  # whether scores are in files of their own

    def recognises(self, source: object) -> bool:
        """Tell whether lists look like this format."""
        module, _, _ = self.built_by.partition(":")
        return bool(load(f"{module}:recognise")(source))


# In the order in which they are tried: Kaldi text, which is what anything may be, comes last.
NBEST_FORMATS: Registry[NBestFormat] = Registry(
    "format of n-best lists",
    NBestFormat(
        name="espnet",
        shown="an ESPnet decode directory",
        help="ESPnet's 1best_recog, 2best_recog, … directories",
        built_by="bnce.rescoring.formats.espnet:read",
    ),
    NBestFormat(
        name="jsonl",
        shown="JSON lines",
        help="one JSON object per utterance",
        built_by="bnce.rescoring.formats.json_lines:read",
        endings=(".jsonl", ".json", ".ndjson"),
    ),
    NBestFormat(
        name="tsv",
        shown="TSV",
        help="utterance, scores and hypothesis separated by tabs",
        built_by="bnce.rescoring.formats.table:read",
        endings=(".tsv",),
    ),
    NBestFormat(
        name="kaldi",
        shown="Kaldi text",
        help="key and words, scores in their own files",
        built_by="bnce.rescoring.formats.kaldi:read",
        scores_apart=True,
    ),
)
