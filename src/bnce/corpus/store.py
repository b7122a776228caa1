"""A corpus on disk: the ids of every split, the vocabulary, the noise counts, and how they were made.

DIR/corpus.json   format, version, normaliser, vocabulary size and types, dtype, figures of every split, all hashes
DIR/vocab.txt     one word per line; the line's number, from 0, is the id
DIR/counts.npy    int64, how often every id is a target of the training split
DIR/spelling.safetensors   how unknown words are spelt
DIR/<split>.npy   the ids, one </s> at every sentence end, none at a start
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.manifest import MANIFEST_FILE, Manifest, SplitStatistics, damaged, read_manifest
from bnce.corpus.spelling import SPELLING_FILE
from bnce.corpus.vocabulary import END, UNK, Vocabulary
from bnce.errors import UserError
from bnce.files import digest_file, map_array
from bnce.text.normalise import Normaliser

VOCABULARY_FILE = "vocab.txt"
COUNTS_FILE = "counts.npy"
_BLOCK_TOKENS = 2**22

Ids = NDArray[Any]


class Part(NamedTuple):
    """The start of a text: its ids, and its bytes where these are known."""

    ids: Ids
    num_bytes: int | None


def first_part(ids: Ids, vocabulary: Vocabulary, num_bytes: int | None, max_words: int = 0) -> Part:
    """Take the first words of a text of `num_bytes`; of a part of it that has `<unk>` nobody knows them."""
    if 0 < max_words < len(ids):
        ids = ids[:max_words]
        num_bytes = vocabulary.count_bytes(ids)
    return Part(ids, num_bytes)


@dataclass(frozen=True)
class Corpus:
    """An open corpus directory. Each file is compared with its hash before it is used."""

    directory: Path
    vocabulary: Vocabulary
    manifest: Manifest
    _checked: dict[str, Ids] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, directory: Path | str) -> Corpus:
        """Open a corpus directory, and check that its files belong together; ids are not read yet."""
        directory = Path(directory)
        manifest = read_manifest(directory)
        vocabulary = Vocabulary.read(directory / VOCABULARY_FILE)
        size = manifest.vocab_size
        if len(vocabulary) != size or vocabulary.digest != manifest.vocabulary_digest:
            raise damaged(directory, f"{VOCABULARY_FILE} is not the vocabulary that the corpus was prepared with")
        if manifest.dtype != ids_dtype(size).name:
            raise damaged(directory, f"{MANIFEST_FILE} says that ids are {manifest.dtype}, not {ids_dtype(size)}")
        corpus = cls(directory, vocabulary, manifest)
        for name in manifest.statistics:
            corpus._map(name)
        train = manifest.statistics.get("train")
        if train is None or int(corpus.target_counts.sum()) != train.num_tokens:
            raise damaged(directory, f"{COUNTS_FILE} does not count the tokens of train")
        return corpus

    @property
    def normaliser(self) -> Normaliser:
        """How text became words."""
        return self.manifest.normaliser

    @property
    def statistics(self) -> dict[str, SplitStatistics]:
        """The figures of every split."""
        return self.manifest.statistics

    @property
    def num_types(self) -> int:
        """How many different words the training text had before the vocabulary was cut."""
        return self.manifest.num_types

    def split(self, name: str) -> Ids:
        """Map the ids of a split into memory. The first call compares them with their hash.

        This takes one or two seconds per gigabyte, once per open
        corpus. Sizes and times of files do not show damage on the disk.
        """
        if name not in self.statistics:
            raise UserError(
                f"The corpus '{self.directory}' has no split '{name}': choose one of {', '.join(self.statistics)}."
            )
        if name not in self._checked:
            ids = self._map(name)
            self._check(name, ids)
            self._checked[name] = ids
        return self._checked[name]

    def part(self, name: str, max_words: int = 0) -> Part:
        """Take the first words of a split (0: all of it), and its size."""
        return first_part(self.split(name), self.vocabulary, self.statistics[name].num_bytes, max_words)

    def verify(self) -> None:
        """Read every split, and refuse the corpus if one has changed: before a long run."""
        for name in self.statistics:
            self.split(name)

    @functools.cached_property
    def target_counts(self) -> NDArray[np.int64]:
        """How often every id is a target of the training split: the counts for the noise."""
        compare_hash(self.directory, COUNTS_FILE, self.manifest.counts_hash)
        return np.array(_map(self.directory, COUNTS_FILE, len(self.vocabulary), np.dtype(np.int64)))

    @property
    def spelling_file(self) -> Path | None:
        """The file of the spelling model, compared with its hash; None where there is no such model."""
        if self.manifest.spelling_hash is None:
            return None
        compare_hash(self.directory, SPELLING_FILE, self.manifest.spelling_hash)
        return self.directory / SPELLING_FILE

    def _map(self, name: str) -> Ids:
        num_tokens, dtype = self.statistics[name].num_tokens, ids_dtype(len(self.vocabulary))
        return _map(self.directory, f"{name}.npy", num_tokens, dtype)

    def _check(self, name: str, ids: Ids) -> None:
        compare_hash(self.directory, f"{name}.npy", self.manifest.hashes[name])
        num_sentences = num_oov = 0
        for block in _blocks(ids):
            lowest, highest = int(block.min()), int(block.max())
            if lowest < 0 or highest >= len(self.vocabulary):
                wrong = lowest if lowest < 0 else highest
                raise damaged(
                    self.directory, f"{name}.npy has the id {wrong}, but the last word is {len(self.vocabulary) - 1}"
                )
            num_sentences += int(np.count_nonzero(block == END))
            num_oov += int(np.count_nonzero(block == UNK))
        told = self.statistics[name]
        if (num_sentences, num_oov) != (told.num_sentences, told.num_oov):
            raise damaged(
                self.directory,
                f"{name}.npy has {num_sentences} sentence ends and {num_oov} unknown words, "
                f"but {MANIFEST_FILE} says {told.num_sentences} and {told.num_oov}",
            )


def compare_hash(directory: Path, file: str, expected: str) -> None:
    """Refuse a file of a corpus that has changed since it was written."""
    try:
        found = digest_file(directory / file)
    except ValueError as error:
        raise damaged(directory, f"{file} cannot be read ({error})") from error
    if found != expected:
        raise damaged(directory, f"{file} has changed since it was written")


def is_corpus(path: Path | str) -> bool:
    """Tell a corpus directory from any other."""
    return (Path(path) / MANIFEST_FILE).is_file()


def count_words(ids: Ids, vocab_size: int) -> NDArray[np.int64]:
    """Count how often every id occurs."""
    counts_V = np.zeros(vocab_size, dtype=np.int64)
    for block in _blocks(ids):
        counts_V += np.bincount(block, minlength=vocab_size)
    return counts_V


def ids_dtype(vocab_size: int) -> np.dtype[Any]:
    """Choose the smallest type that holds every id, of those that PyTorch and NumPy share."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.int32)


class IdsFile:
    """The file of a split, written from its first token to its last: by one process, so that any disk will do.

    Pages of a file that several machines write to at once may lose what one of them wrote.
    """

    def __init__(self, directory: Path, name: str, vocab_size: int) -> None:
        self._path = directory / f"{name}.npy"
        self._dtype = ids_dtype(vocab_size)
        self._num_tokens = 0
        self._path.write_bytes(self._header())

    def append(self, ids: Ids) -> None:
        """Write the next ids."""
        assert ids.dtype == self._dtype
        # Not through a memory map: there a full disk would be a bus error, not an exception.
        with open(self._path, "ab") as file:
            file.write(np.ascontiguousarray(ids).data)
        self._num_tokens += len(ids)

    def finish(self) -> str:
        """Write at the start how many ids there are, which nobody knew, and give the SHA-256 of the file."""
        with open(self._path, "r+b") as file:
            file.write(self._header())
        return digest_file(self._path)

    def _header(self) -> bytes:
        """Write what comes before the ids: NumPy leaves room in it for any number of them."""
        header = io.BytesIO()
        shape = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._num_tokens,)}
        np.lib.format.write_array_header_1_0(header, shape)
        return header.getvalue()


def write_description(
    directory: Path,
    vocabulary: Vocabulary,
    normaliser: Normaliser,
    target_counts: NDArray[np.int64],
    statistics: Mapping[str, SplitStatistics],
    hashes: Mapping[str, str],
    num_types: int,
    min_count: int | None = None,
) -> None:
    """Write all that makes a corpus of a directory with a vocabulary, files of ids and perhaps a spelling model."""
    spelling = directory / SPELLING_FILE
    with open(directory / COUNTS_FILE, "wb") as file:
        np.save(file, target_counts.astype(np.int64), allow_pickle=False)
    Manifest(
        vocab_size=len(vocabulary),
        vocabulary_digest=vocabulary.digest,
        normaliser=normaliser,
        statistics=dict(statistics),
        hashes=dict(hashes),
        counts_hash=digest_file(directory / COUNTS_FILE),
        dtype=ids_dtype(len(vocabulary)).name,
        num_types=num_types,
        spelling_hash=digest_file(spelling) if spelling.is_file() else None,
        min_count=min_count,
    ).write(directory)


def _map(directory: Path, name: str, length: int, dtype: np.dtype[Any]) -> Ids:
    try:
        array = map_array(directory / name)
    except ValueError as error:
        raise damaged(directory, f"{name} cannot be read ({error})") from error
    if array.shape != (length,) or array.dtype != dtype:
        raise damaged(directory, f"{name} holds {array.shape} of {array.dtype}, not {(length,)} of {dtype}")
    return array


def _blocks(ids: Ids) -> Iterator[Ids]:
    return (ids[begin : begin + _BLOCK_TOKENS] for begin in range(0, len(ids), _BLOCK_TOKENS))
