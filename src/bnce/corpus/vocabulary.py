"""The words a model knows, each with its id: the sentence end, the unknown word, then the others."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.errors import UserError, argument
from bnce.files import write_text
from bnce.text.normalise import END_WORD, UNKNOWN_WORD
from bnce.text.sources import read_lines

END = 0
UNK = 1
SPECIALS = (END_WORD, UNKNOWN_WORD)
# A model needs at least one word to tell from the specials.
MIN_SIZE = len(SPECIALS) + 1
# Beside it, vocab.txt once listed pieces of words: read as words, nearly all of a text would be `<unk>`.
_PIECES_FILE = "pieces.json"


class Vocabulary:
    """The words in the order of their ids; END and UNK come first."""

    def __init__(self, words: Sequence[str], source: str = "The vocabulary") -> None:
        self.words = list(words)
        self._ids = {word: number for number, word in enumerate(self.words)}
        _check(self.words, self._ids, source)

    @classmethod
    def read(cls, path: str | Path) -> Vocabulary:
        """Read a vocabulary file: one word per line, the line's number, from 0, is the word's id."""
        if (Path(path).parent / _PIECES_FILE).is_file():
            raise UserError(
                f"The vocabulary '{path}' has pieces of words, because {_PIECES_FILE} lies beside it, and only version "
                "0.2.0 cuts words into pieces: cut the text yourself, as examples/pieces.py does, and prepare it with "
                f"{argument('tokens', 'whitespace')}."
            )
        return cls(list(read_lines(str(path))), f"The vocabulary '{path}'")

    def write(self, path: str | Path) -> None:
        """Write the vocabulary file that `read` reads."""
        write_text(Path(path), self._text)

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the words, which is that of the file `write` makes."""
        return hashlib.sha256(self._text.encode()).hexdigest()

    @property
    def _text(self) -> str:
        return "".join(f"{word}\n" for word in self.words)

    def encode(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Give the ids of words; one that is not here gets UNK."""
        ids = self._ids
        return np.fromiter((ids.get(word, UNK) for word in words), dtype=np.int64)

    def count_bytes(self, ids: NDArray[Any]) -> int | None:
        """Count the bytes of a text of ids with one blank or line end after every word; None if one is unknown."""
        counts_V = np.bincount(ids, minlength=len(self))
        return None if counts_V[UNK] else int(counts_V @ self._num_bytes)

    @functools.cached_property
    def _num_bytes(self) -> NDArray[np.int64]:
        num_bytes_V = np.array([len(word.encode()) + 1 for word in self.words])
        num_bytes_V[END] = 0
        return num_bytes_V

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
