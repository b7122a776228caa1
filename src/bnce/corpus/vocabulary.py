"""The words a model knows, each with its id: the sentence end, the unknown word, then the others."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.errors import UserError
from bnce.files import write_text
from bnce.text.normalise import END_WORD, UNKNOWN_WORD
from bnce.text.sources import read_lines

END = 0
UNK = 1
SPECIALS = (END_WORD, UNKNOWN_WORD)
# A model needs at least one word to tell from the specials.
MIN_SIZE = len(SPECIALS) + 1


class WordIds(NamedTuple):
    """The ids of some words in one array, and how many of them each word has: one, or one for each of its pieces."""

    ids: NDArray[Any]
    lengths: NDArray[np.int64]

    def expand(self, number_N: NDArray[Any]) -> NDArray[Any]:
        """Give the ids of a text that is written as the numbers of these words."""
        place_N = number_N
        if len(self.ids) != len(self.lengths):
            begin_N = (np.cumsum(self.lengths) - self.lengths)[number_N]
            length_N = self.lengths[number_N]
            # A word begins at one place there, and at another in the text: the difference holds for all of its ids.
            shift_N = begin_N - np.cumsum(length_N) + length_N
            place_N = np.repeat(shift_N, length_N) + np.arange(int(length_N.sum()))
        ids_N: NDArray[Any] = self.ids[place_N]
        return ids_N


class Vocabulary:
    """The words in the order of their ids; END and UNK come first."""

    # What ids stand for; `pieces.PieceVocabulary` has pieces of words.
    unit = "word"

    def __init__(self, words: Sequence[str], source: str = "The vocabulary") -> None:
        self.words = list(words)
        self._ids = {word: number for number, word in enumerate(self.words)}
        _check(self.words, self._ids, source)

    @classmethod
    def read(cls, path: str | Path) -> Vocabulary:
        """Read a vocabulary file: one word per line, the line's number, from 0, is the word's id."""
        return cls(list(read_lines(str(path))), f"The vocabulary '{path}'")

    def write(self, path: str | Path) -> None:
        """Write the vocabulary file that `read` reads."""
        write_text(Path(path), self._text)

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the words, which is that of the file `write` makes."""
        return hashlib.sha256(self._text.encode()).hexdigest()

    @property
    def file_hashes(self) -> dict[str, str]:
        """The SHA-256 of the files that say, beside the vocabulary file, which ids a text gets: none for words."""
        return {}

    @property
    def _text(self) -> str:
        return "".join(f"{word}\n" for word in self.words)

    @property
    def listed_words(self) -> list[str] | None:
        """All words that are known; None where pieces spell any word."""
        return self.words

    def encode(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Give the ids of words; one that is not here gets UNK."""
        ids = self._ids
        return np.fromiter((ids.get(word, UNK) for word in words), dtype=np.int64)

    def encode_each(self, words: Sequence[str]) -> WordIds:
        """Give the ids of words with their number for each word."""
        return WordIds(self.encode(words), np.ones(len(words), dtype=np.int64))

    def count_ids(self, words: Sequence[str], most: int) -> int:
        """Count the ids of words; above `most` the number may be too low, but is above it."""
        return len(words)

    @functools.cached_property
    def starts_word(self) -> NDArray[np.bool_]:
        """Which ids begin a word, END and UNK among them: all, unless there are pieces."""
        return np.ones(len(self), dtype=bool)

    def count_words(self, ids: NDArray[Any]) -> int:
        """Count the words of a text of ids; `</s>` is one."""
        return int(np.count_nonzero(self.starts_word[ids]))

    def count_bytes(self, ids: NDArray[Any]) -> int | None:
        """Count the bytes of a text of ids with one blank or line end after every word; None if one is unknown."""
        counts_V = np.bincount(ids, minlength=len(self))
        return None if counts_V[UNK] else int(counts_V @ self._num_bytes)

    @functools.cached_property
    def _num_bytes(self) -> NDArray[np.int64]:
        num_bytes_V = np.array([len(word.encode()) + 1 for word in self.words])
        num_bytes_V[END] = 0
        return num_bytes_V

    def spell(self, ids: Iterable[int]) -> list[str]:
        """Give the words of a text of ids."""
        return self.decode(ids)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Give the words of ids."""
        words = self.words
        return [words[number] for number in ids]

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.digest)


def _check(words: list[str], ids: dict[str, int], source: str) -> None:
    """Refuse words that a file of one word per line could not give back, naming the line."""
    text = "\n".join(words)
    # A million words at once take a twentieth of the time that they take one by one, which names the bad line.
    fine = tuple(words[: len(SPECIALS)]) == SPECIALS and len(ids) == len(words) and "\0" not in text
    if fine and text.split() == words:
        return
    for number, special in enumerate(SPECIALS):
        found = f"'{words[number]}'" if number < len(words) else "nothing"
        if found != f"'{special}'":
            raise UserError(
                f"{source} has {found} on line {number + 1}: its first two lines must be {' and '.join(SPECIALS)}."
            )
    for number, word in enumerate(words):
        if word.split() != [word] or "\0" in word:
            what = f"a blank or NUL inside {word!r}" if word.strip() else "no word"
            raise UserError(f"{source} has {what} on line {number + 1}: give one word per line and nothing else.")
        if ids[word] != number:
            raise UserError(
                f"{source} has '{word}' both on line {number + 1} and on line {ids[word] + 1}: remove one of them."
            )
