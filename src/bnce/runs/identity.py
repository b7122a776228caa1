"""What a model file says of the files beside it: with other words or settings its numbers mean something else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from bnce.corpus.vocabulary import Vocabulary
from bnce.reading import digest_file, parse_object
from bnce.registry import ModelConfig
from bnce.runs.checkpoint import MODEL_FILE
from bnce.settings import FORMAT
from bnce.spelling.model import SPELLING_FILE
from bnce.text.normalise import Normaliser

# Digests of whole files; a model file that another program wrote has none.
_DIGESTS = {"vocabulary": "vocab.txt", "counts": "counts.npy", "spelling": SPELLING_FILE}
# In place of a digest: the file was not there.
_ABSENT = ""
# Settings, kept as they are and not as a digest, so that one that a later version adds makes no difference.
_SETTINGS = {"normaliser": "normaliser.json", "network": "config.toml"}


def identify(
    path: Path, vocabulary: Vocabulary, counts_V: np.ndarray, normaliser: Normaliser, network: ModelConfig
) -> dict[str, str]:
    """Describe the files of a run directory, for the metadata of its model file."""
    spelling = path / SPELLING_FILE
    return {
        "vocabulary": vocabulary.digest,
        "counts": hashlib.sha256(counts_V.astype("<i8").tobytes()).hexdigest(),
        "normaliser": json.dumps(normaliser.to_dict(), sort_keys=True),
        "network": json.dumps({"format": FORMAT, **msgspec.to_builtins(network)}, sort_keys=True),
        "spelling": digest_file(spelling) if spelling.is_file() else _ABSENT,
    }


def find_changes(written: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Say of files that are not those a model file was written with, as far as it tells, what happened to them."""
    differing = {key: file for key, file in _DIGESTS.items() if key in written and written[key] != now[key]}
    changes = [_tell_change(file, written[key], now[key]) for key, file in differing.items()]
    for key, file in _SETTINGS.items():
        before, after = parse_object(written.get(key, "{}")), parse_object(now[key])
        settings = (name for name in before if name in after and name != "format" and before[name] != after[name])
        if told := [f"{name} was {before[name]!r}, is {after[name]!r}" for name in settings]:
            changes.append(_tell_change(f"{file} ({'; '.join(told)})"))
    return changes


def _tell_change(file: str, before: str | None = None, after: str | None = None) -> str:
    if before == _ABSENT:
        return f"{file} was not there when {MODEL_FILE} was written: remove it"
    if after == _ABSENT:
        return f"{file} is missing: restore the file with which {MODEL_FILE} was written, or train the run again"
    return f"{file} changed after {MODEL_FILE} was written; restore the old file, or train the run again"
