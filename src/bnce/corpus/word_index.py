"""The vocabulary of an exported run, opened at once whatever its size: words are looked up in files, not read.

vocab.txt        the words, one per line; the line number is the id
vocab.index.npy  three rows of 64-bit numbers: the sorted hashes of all words, the ids in their order, and where in
                 vocab.txt the word of each id begins

Legend: V words, N words that are looked up.
"""

from __future__ import annotations

import functools
import hashlib
import io
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import UNK, Vocabulary
from bnce.errors import UserError
from bnce.files import map_array

VOCABULARY_FILE = "vocab.txt"
INDEX_FILE = "vocab.index.npy"


def write_index(words: Sequence[str], path: Path) -> None:
    """Write the index of a vocabulary file with these words."""
    encoded = [word.encode() for word in words]
    hash_V = _hashes(encoded)
    order_V = np.argsort(hash_V, kind="stable")
    size_V = np.fromiter(map(len, encoded), dtype=np.uint64, count=len(encoded)) + np.uint64(1)
    index = io.BytesIO()
    np.save(index, np.stack([hash_V[order_V], order_V.astype("<u8"), np.cumsum(size_V) - size_V]), allow_pickle=False)
    path.write_bytes(index.getvalue())


class MappedVocabulary(Vocabulary):
    """Words that are looked up in mapped files; those that were found before are kept."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / VOCABULARY_FILE
        try:
            with open(self._path, "rb") as file:
                self._text_map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            index_3V = map_array(directory / INDEX_FILE)
            if index_3V.ndim != 2 or len(index_3V) != 3 or index_3V.dtype != np.dtype("<u8"):
                raise ValueError("it is not an index of words")
        except (OSError, ValueError) as error:
            raise UserError(
                f"The exported run '{directory}' is damaged: {VOCABULARY_FILE} or {INDEX_FILE} cannot be read "
                f"({error}); export the run again."
            ) from error
        self._hash_V, self._order_V, self._begin_V = index_3V
        self._found: dict[str, int] = {}

    @functools.cached_property
    def words(self) -> list[str]:  # type: ignore[override]
        """All words, which are read when somebody first asks for them."""
        return self._text_map[:].decode().split("\n")[:-1]

    @property
    def _text(self) -> str:
        return self._text_map[:].decode()

    def __len__(self) -> int:
        return len(self._hash_V)

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and (word == self._word(UNK) or int(self.encode([word])[0]) != UNK)

    def encode(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Give the ids of words; one that is not here gets UNK."""
        words = list(words)
        found = self._found
        if missing := [word for word in dict.fromkeys(words) if word not in found]:
            found.update(zip(missing, self._look_up(missing), strict=True))
        return np.fromiter(map(found.__getitem__, words), dtype=np.int64, count=len(words))

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Give the words of ids."""
        return [self._word(number) for number in ids]

    def _look_up(self, words: Sequence[str]) -> list[int]:
        # A word with half of a surrogate pair is in no file.
        encoded = [word.encode("utf-8", "surrogatepass") for word in words]
        hash_N = _hashes(encoded)
        place_N = np.searchsorted(self._hash_V, hash_N)
        return [self._match(*one) for one in zip(encoded, hash_N, place_N.tolist(), strict=True)]

    def _match(self, word: bytes, hashed: np.uint64, place: int) -> int:
        """Find the word among those with its hash, of which there is nearly always one."""
        while place < len(self._hash_V) and self._hash_V[place] == hashed:
            number = int(self._order_V[place])
            begin = int(self._begin_V[number])
            if self._text_map[begin : begin + len(word) + 1] == word + b"\n":
                return number
            place += 1
        return UNK

    def _word(self, number: int) -> str:
        begin = int(self._begin_V[number])
        return self._text_map[begin : self._text_map.find(b"\n", begin)].decode()


def _hashes(encoded: Sequence[bytes]) -> NDArray[np.uint64]:
    digests = b"".join(hashlib.blake2b(word, digest_size=8).digest() for word in encoded)
    return np.frombuffer(digests, dtype="<u8")
