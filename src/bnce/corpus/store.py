"""A corpus on disk: the ids of every split, the vocabulary, the noise counts, and how they were made.

DIR/corpus.json   format, version, normaliser, vocabulary digest and size, dtype, figures of every split
DIR/vocab.txt     one word a line; the line's number, from 0, is the id
DIR/counts.npy    int64, how often every id is a target of the training split
DIR/<split>.npy   the ids, one </s> at every sentence end, none at a start
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.normalise import Normaliser
from bnce.corpus.vocabulary import Vocabulary
from bnce.errors import UserError

FORMAT = "bnce-corpus"
VERSION = 1
SPLITS = ("train", "valid", "test")

_MANIFEST = "corpus.json"
_VOCABULARY = "vocab.txt"
_COUNTS = "counts.npy"

Ids = NDArray[Any]


@dataclass(frozen=True)
class SplitStatistics:
    """The size of a split; `num_tokens` counts the sentence ends, `num_oov` the unknown words."""

    num_tokens: int
    num_sentences: int
    num_documents: int
    num_oov: int

    @property
    def unk_rate(self) -> float:
        """The share of words, sentence ends left out, that are unknown."""
        return self.num_oov / max(1, self.num_tokens - self.num_sentences)


@dataclass(frozen=True)
class Corpus:
    """An open corpus directory."""

    directory: Path
    vocabulary: Vocabulary
    normaliser: Normaliser
    statistics: dict[str, SplitStatistics]
    hashes: dict[str, str]

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
            statistics = {
                name: SplitStatistics(**{key: int(value) for key, value in split.items() if key != "sha256"})
                for name, split in manifest["splits"].items()
            }
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise _torn(directory, f"{_MANIFEST} lacks or misstates {error}") from error
        vocabulary = Vocabulary.read(directory / _VOCABULARY)
        if len(vocabulary) != size or vocabulary.digest != digest:
            raise _torn(directory, f"{_VOCABULARY} is not the vocabulary it was made with")
        if dtype != ids_dtype(size).name:
            raise _torn(directory, f"{_MANIFEST} says that ids are {dtype}, not {ids_dtype(size)}")
        corpus = cls(directory, vocabulary, normaliser, statistics, hashes)
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
            with open(self.directory / f"{name}.npy", "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                    raise _torn(self.directory, f"{name}.npy has changed since it was written")


def ids_dtype(vocab_size: int) -> np.dtype[Any]:
    """Choose the smallest type that holds every id, of those that PyTorch and NumPy share."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.int32)


def write_ids(directory: Path, name: str, blocks: Iterable[Ids], num_tokens: int, vocab_size: int) -> str:
    """Write a split block by block and return its SHA-256."""
    dtype = ids_dtype(vocab_size)
    written = 0
    with open(directory / f"{name}.npy", "w+b") as file:
        # Written as a stream: through a memory map a full disk would be a bus error, not an exception.
        header = {"descr": dtype.str, "fortran_order": False, "shape": (num_tokens,)}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype=dtype).data)
            written += len(block)
        assert written == num_tokens
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_description(
    directory: Path,
    vocabulary: Vocabulary,
    normaliser: Normaliser,
    target_counts: NDArray[np.int64],
    statistics: Mapping[str, SplitStatistics],
    hashes: Mapping[str, str],
) -> None:
    """Write all that makes a directory of id files a corpus."""
    vocabulary.write(directory / _VOCABULARY)
    with open(directory / _COUNTS, "wb") as file:
        np.save(file, target_counts.astype(np.int64), allow_pickle=False)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "normaliser": normaliser.to_dict(),
        "vocabulary": {"size": len(vocabulary), "sha256": vocabulary.digest},
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
    if manifest.get("version") != VERSION:
        raise UserError(
            f"The corpus '{directory}' has format version {manifest.get('version')} "
            f"and this program reads {VERSION}: prepare it again."
        )
    return manifest


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
