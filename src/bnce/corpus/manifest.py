"""corpus.json: what a corpus directory holds, how it was made, and the hashes that damage shows by."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.errors import UserError
from bnce.files import digest_record, read_object
from bnce.text.normalise import Normaliser

FORMAT = "bnce-corpus"
VERSION = 4
MANIFEST_FILE = "corpus.json"
SPLITS = ("train", "valid", "test")
# Sentences are counted by length: up to 5 words, up to 10, … and longer than the last.
LENGTH_BOUNDS = (5, 10, 15, 20, 25, 30, 40, 60, 80, 100)
_COUNTS = ("num_tokens", "num_sentences", "num_documents", "num_oov", "num_bytes")


@dataclass(frozen=True)
class SplitStatistics:
    """The size of a split; `num_tokens` counts the sentence ends, `num_oov` the unknown words.

    `sentence_lengths` counts sentences by LENGTH_BOUNDS. `num_bytes` is the size of the text in UTF-8 before words
    became `<unk>`, with one sentence per line and one blank between words.
    """

    num_tokens: int
    num_sentences: int
    num_documents: int
    num_oov: int
    sentence_lengths: tuple[int, ...]
    num_bytes: int

    @property
    def unk_rate(self) -> float:
        """The share of words, sentence ends left out, that are unknown."""
        return self.num_oov / max(1, self.num_tokens - self.num_sentences)


def sum_statistics(parts: Sequence[SplitStatistics]) -> SplitStatistics:
    """Add up the figures of a split's parts."""
    lengths = tuple(sum(column) for column in zip(*(part.sentence_lengths for part in parts), strict=True))
    counts = {name: sum(getattr(part, name) for part in parts) for name in _COUNTS}
    return SplitStatistics(**counts, sentence_lengths=lengths)


def count_lengths(sentence_end_at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count sentences by length, given where in a text their ends are."""
    length = np.diff(sentence_end_at, prepend=-1) - 1
    return np.bincount(np.searchsorted(LENGTH_BOUNDS, length), minlength=len(LENGTH_BOUNDS) + 1)


@dataclass(frozen=True)
class Manifest:
    """What corpus.json says; hashes are SHA-256 of files."""

    vocab_size: int
    vocabulary_digest: str
    normaliser: Normaliser
    statistics: dict[str, SplitStatistics]
    hashes: dict[str, str]
    counts_hash: str
    dtype: str
    num_types: int  # different words of the training text before the cut
    # Of the spelling model of unknown words, if there is one.
    spelling_hash: str | None = None
    # Words that occur less often were left out; None for a vocabulary that was given.
    min_count: int | None = None

    def write(self, directory: Path) -> None:
        """Write the file that `read_manifest` reads."""
        record = {
            "format": FORMAT,
            "version": VERSION,
            "normaliser": self.normaliser.to_dict(),
            "vocabulary": {
                "size": self.vocab_size,
                "sha256": self.vocabulary_digest,
                "num_types": self.num_types,
                "min_count": self.min_count,
            },
            "counts": {"sha256": self.counts_hash},
            "spelling": {"sha256": self.spelling_hash},
            "dtype": self.dtype,
            "splits": {name: {**asdict(split), "sha256": self.hashes[name]} for name, split in self.statistics.items()},
        }
        record["sha256"] = digest_record(record)
        (directory / MANIFEST_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read_manifest(directory: Path) -> Manifest:
    """Read a corpus's description; one that is damaged, or contradicts itself, is refused."""
    path = directory / MANIFEST_FILE
    if not path.is_file():
        if not directory.exists():
            raise UserError(f"'{directory}' does not exist: check the path, or make a corpus with 'bnce prepare'.")
        raise UserError(
            f"'{directory}' is not a corpus, because it has no {MANIFEST_FILE}: make one with 'bnce prepare'."
        )
    try:
        record = read_object(path)
    except ValueError as error:
        raise damaged(directory, f"{MANIFEST_FILE} cannot be read ({error})") from error
    if record.get("format") != FORMAT:
        raise UserError(f"'{directory}' is not a corpus: its {MANIFEST_FILE} is not of the format {FORMAT}.")
    version = record.get("version")
    if type(version) is not int or version != VERSION:
        raise UserError(
            f"The corpus '{directory}' has format version {version!r:.40}, but this program reads {VERSION}: prepare "
            "it again."
        )
    if record.pop("sha256", None) != digest_record(record):
        raise damaged(directory, f"{MANIFEST_FILE} has changed since it was written")
    try:
        return _parse(record)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise damaged(directory, f"{MANIFEST_FILE} has a missing or wrong entry: {error}") from error


def damaged(directory: Path, reason: str) -> UserError:
    """Say what is wrong with a corpus."""
    return UserError(f"The corpus '{directory}' is damaged: {reason}; prepare it again.")


def _parse(record: Mapping[str, Any]) -> Manifest:
    vocabulary, splits = record["vocabulary"], record["splits"]
    spelling = record["spelling"]
    for name in splits:
        if name not in SPLITS:
            raise ValueError(f"a split '{name}'")
    return Manifest(
        vocab_size=_count(vocabulary, "size"),
        vocabulary_digest=_text(vocabulary, "sha256"),
        normaliser=Normaliser.from_dict(record["normaliser"]),
        statistics={name: _statistics(split) for name, split in splits.items()},
        hashes={name: _text(split, "sha256") for name, split in splits.items()},
        counts_hash=_text(record["counts"], "sha256"),
        spelling_hash=None if spelling["sha256"] is None else _text(spelling, "sha256"),
        dtype=_text(record, "dtype"),
        num_types=_count(vocabulary, "num_types"),
        min_count=None if vocabulary["min_count"] is None else _count(vocabulary, "min_count"),
    )


def _statistics(split: Mapping[str, Any]) -> SplitStatistics:
    counts = {name: _count(split, name) for name in _COUNTS}
    lengths = split["sentence_lengths"]
    if not isinstance(lengths, list) or any(type(count) is not int or count < 0 for count in lengths):
        raise ValueError("sentence_lengths")
    return SplitStatistics(**counts, sentence_lengths=tuple(lengths))


def _count(record: Mapping[str, Any], key: str) -> int:
    value = record[key]
    if type(value) is not int or value < 0:
        raise ValueError(f"{key} ({value!r:.40})")
    return value


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record[key]
    if not isinstance(value, str):
        raise ValueError(f"{key} ({value!r:.40})")
    return value
