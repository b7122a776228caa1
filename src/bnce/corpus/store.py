"""A corpus on disk: the ids of every split, the vocabulary, the noise counts, and how they were made.

DIR/corpus.json   format, version, normaliser, vocabulary digest, size and types, dtype, figures of every split
DIR/vocab.txt     one word a line; the line's number, from 0, is the id
DIR/counts.npy    int64, how often every id is a target of the training split
DIR/<split>.npy   the ids, one </s> at every sentence end, none at a start
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.normalise import Normaliser
from bnce.corpus.vocabulary import Vocabulary
from bnce.errors import UserError

FORMAT = "bnce-corpus"
VERSION = 2
# Version 1 had no number of types and no sentence lengths.
_READABLE = (1, VERSION)
SPLITS = ("train", "valid", "test")
# Sentences are counted by length: up to 5 words, up to 10, … and longer than the last.
LENGTH_BOUNDS = (5, 10, 15, 20, 25, 30, 40, 60, 80, 100)

_MANIFEST = "corpus.json"
VOCABULARY_FILE = "vocab.txt"
_COUNTS = "counts.npy"

Ids = NDArray[Any]


@dataclass(frozen=True)
class SplitStatistics:
    """The size of a split; `num_tokens` counts the sentence ends, `num_oov` the unknown words.

    `sentence_lengths` counts sentences by LENGTH_BOUNDS; a corpus of version 1 has none.
    """

    num_tokens: int
    num_sentences: int
    num_documents: int
    num_oov: int
    sentence_lengths: tuple[int, ...] = ()

    @property
    def unk_rate(self) -> float:
        """The share of words, sentence ends left out, that are unknown."""
        return self.num_oov / max(1, self.num_tokens - self.num_sentences)


def sum_statistics(parts: Sequence[SplitStatistics]) -> SplitStatistics:
    """Add up the figures of a split's parts."""
    lengths = tuple(sum(column) for column in zip(*(part.sentence_lengths for part in parts), strict=True))
    return SplitStatistics(
        num_tokens=sum(part.num_tokens for part in parts),
        num_sentences=sum(part.num_sentences for part in parts),
        num_documents=sum(part.num_documents for part in parts),
        num_oov=sum(part.num_oov for part in parts),
        sentence_lengths=lengths,
    )


@dataclass(frozen=True)
class Corpus:
    """An open corpus directory."""

    directory: Path
    vocabulary: Vocabulary
    normaliser: Normaliser
    statistics: dict[str, SplitStatistics]
    hashes: dict[str, str]
    # Different words of the training text before the cut; a corpus of version 1 does not know.
    num_types: int | None = None

    @classmethod
    def open(cls, directory: Path | str) -> Corpus:
        """Open a corpus directory, refusing one whose parts do not belong together."""
        directory = Path(directory)
        manifest = _read_manifest(directory)
        try:
            size, digest = int(manifest["vocabulary"]["size"]), manifest["vocabulary"]["sha256"]
            dtype = manifest["dtype"]
            normaliser = Normaliser.from_dict(manifest["normaliser"])
            hashes = {name: str(split["sha256"]) for name, split in manifest["splits"].items()}
            statistics = {name: _statistics(split) for name, split in manifest["splits"].items()}
            num_types = manifest["vocabulary"].get("num_types")
            num_types = None if num_types is None else int(num_types)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise _torn(directory, f"{_MANIFEST} lacks or misstates {error}") from error
        vocabulary = Vocabulary.read(directory / VOCABULARY_FILE)
        if len(vocabulary) != size or vocabulary.digest != digest:
            raise _torn(directory, f"{VOCABULARY_FILE} is not the vocabulary it was made with")
        if dtype != ids_dtype(size).name:
            raise _torn(directory, f"{_MANIFEST} says that ids are {dtype}, not {ids_dtype(size)}")
        corpus = cls(directory, vocabulary, normaliser, statistics, hashes, num_types)
        for name in statistics:
            if name not in SPLITS:
                raise _torn(directory, f"{_MANIFEST} names a split '{name}'")
            corpus.split(name)
        if "train" not in statistics or int(corpus.target_counts.sum()) != statistics["train"].num_tokens:
            raise _torn(directory, f"{_COUNTS} does not count the tokens of train")
        return corpus

    def split(self, name: str) -> Ids:
        """Map the ids of a split into memory."""
        if name not in self.statistics:
            raise UserError(
                f"The corpus '{self.directory}' has no split '{name}': choose one of {', '.join(self.statistics)}."
            )
        expected = (self.statistics[name].num_tokens,)
        return _load(self.directory, f"{name}.npy", expected, ids_dtype(len(self.vocabulary)), mapped=True)

    @functools.cached_property
    def target_counts(self) -> NDArray[np.int64]:
        """How often every id is a target of the training split: the counts that noise is drawn by."""
        return _load(self.directory, _COUNTS, (len(self.vocabulary),), np.dtype(np.int64), mapped=False)

    def verify(self) -> None:
        """Read every id file through and compare it with the hash taken when it was written."""
        for name, expected in self.hashes.items():
            if hash_ids(self.directory, name) != expected:
                raise _torn(self.directory, f"{name}.npy has changed since it was written")


def is_corpus(path: Path | str) -> bool:
    """Tell a corpus directory from any other."""
    return (Path(path) / _MANIFEST).is_file()


def ids_dtype(vocab_size: int) -> np.dtype[Any]:
    """Choose the smallest type that holds every id, of those that PyTorch and NumPy share."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.int32)


def count_lengths(sentence_end_at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count sentences by length, given where in a text their ends are."""
    length = np.diff(sentence_end_at, prepend=-1) - 1
    return np.bincount(np.searchsorted(LENGTH_BOUNDS, length), minlength=len(LENGTH_BOUNDS) + 1)


def start_ids(directory: Path, name: str, num_tokens: int, vocab_size: int) -> None:
    """Begin the file of a split, to be filled by `write_ids_at`."""
    with open(directory / f"{name}.npy", "wb") as file:
        header = {"descr": ids_dtype(vocab_size).str, "fortran_order": False, "shape": (num_tokens,)}
        np.lib.format.write_array_header_1_0(file, header)


def write_ids_at(directory: Path, name: str, ids: Ids, first_token: int) -> None:
    """Write some ids of a split to their place; several processes may do so at once."""
    # Not through a memory map: there a full disk would be a bus error, not an exception.
    with open(directory / f"{name}.npy", "r+b") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        file.seek(first_token * ids.itemsize, os.SEEK_CUR)
        file.write(np.ascontiguousarray(ids).data)


def hash_ids(directory: Path, name: str) -> str:
    """Give the SHA-256 of the file of a split."""
    with open(directory / f"{name}.npy", "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_ids(directory: Path, name: str, blocks: Iterable[Ids], num_tokens: int, vocab_size: int) -> str:
    """Write a split block by block and return its SHA-256."""
    start_ids(directory, name, num_tokens, vocab_size)
    written = 0
    for block in blocks:
        write_ids_at(directory, name, np.asarray(block, dtype=ids_dtype(vocab_size)), written)
        written += len(block)
    assert written == num_tokens
    return hash_ids(directory, name)


def write_description(
    directory: Path,
    vocabulary: Vocabulary,
    normaliser: Normaliser,
    target_counts: NDArray[np.int64],
    statistics: Mapping[str, SplitStatistics],
    hashes: Mapping[str, str],
    num_types: int | None = None,
) -> None:
    """Write all that makes a directory of id files a corpus."""
    vocabulary.write(directory / VOCABULARY_FILE)
    with open(directory / _COUNTS, "wb") as file:
        np.save(file, target_counts.astype(np.int64), allow_pickle=False)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "normaliser": normaliser.to_dict(),
        "vocabulary": {"size": len(vocabulary), "sha256": vocabulary.digest, "num_types": num_types},
        "dtype": ids_dtype(len(vocabulary)).name,
        "splits": {name: {**asdict(split), "sha256": hashes[name]} for name, split in statistics.items()},
    }
    (directory / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / _MANIFEST
    if not path.is_file():
        raise UserError(
            f"'{directory}' is not a corpus, for it has no {_MANIFEST}: make one with `bnce prepare SOURCE --out DIR`."
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _torn(directory, f"{_MANIFEST} cannot be read ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"'{directory}' is not a corpus: its {_MANIFEST} is not of the format {FORMAT}.")
    if manifest.get("version") not in _READABLE:
        raise UserError(
            f"The corpus '{directory}' has format version {manifest.get('version')} "
            f"and this program reads {' and '.join(map(str, _READABLE))}: prepare it again."
        )
    return manifest


def _statistics(split: Mapping[str, Any]) -> SplitStatistics:
    counts = {key: int(value) for key, value in split.items() if key not in ("sha256", "sentence_lengths")}
    return SplitStatistics(**counts, sentence_lengths=tuple(map(int, split.get("sentence_lengths", ()))))


def _load(directory: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], mapped: bool) -> Ids:
    try:
        array: Ids = np.load(directory / name, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _torn(directory, f"{name} cannot be read ({error})") from error
    if array.shape != shape or array.dtype != dtype:
        raise _torn(directory, f"{name} holds {array.shape} of {array.dtype}, not {shape} of {dtype}")
    return array


def _torn(directory: Path, reason: str) -> UserError:
    return UserError(f"The corpus '{directory}' is damaged: {reason}; prepare it again.")
