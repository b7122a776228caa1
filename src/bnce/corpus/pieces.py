"""A vocabulary of pieces: every word is cut by byte-pair encoding, and what a model predicts are the pieces.

A word is cut together with the blank before it. Bytes are spelt with the letters that GPT-2 gave them, where the blank
is Ġ: so the first piece of a word begins with Ġ and no other does, every string has pieces, and no piece lies across
words. `</s>` and `<unk>` are one piece each. Where words begin, and how many there are, can be read from ids alone.

DIR/vocab.txt        the pieces, one per line; the line's number, from 0, is the id
DIR/pieces.json      how words are cut, as the `tokenizers` library writes it
DIR/known_words.txt  if it is there: a word that is not in it is `<unk>`, and is not cut into pieces
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import END, SPECIALS, UNK, Vocabulary, WordIds
from bnce.errors import UserError
from bnce.files import write_text
from bnce.machine.packages import need

PIECES_FILE = "pieces.json"
KNOWN_WORDS_FILE = "known_words.txt"
PIECES_FILES = (PIECES_FILE, KNOWN_WORDS_FILE)
BLANK = "Ġ"

# GPT-2's letters: a printable byte stands for itself, others for the letters from U+0100 on.
_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_LETTER_OF_BYTE = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + n) for n, byte in enumerate(_OTHERS)}
_BYTE_OF_LETTER = {letter: byte for byte, letter in _LETTER_OF_BYTE.items()}
ALPHABET = sorted(_BYTE_OF_LETTER)

_CACHED_WORDS = 2**18
# Longer ones are rare, and would fill the memory.
_CACHED_LETTERS = 64


class PieceVocabulary(Vocabulary):
    """The pieces in the order of their ids, and how words are cut into them."""

    unit = "piece"

    def __init__(
        self, pieces: Sequence[str], rules: str, known: Vocabulary | None = None, source: str = "The vocabulary"
    ) -> None:
        super().__init__(pieces, source)
        self.rules, self.known = rules, known
        tokenizer = _open_tokenizer(
            rules, f"{source}: {PIECES_FILE} cannot be read", "restore the file that was written with vocab.txt"
        )
        if tokenizer.get_vocab() != self._ids:
            raise UserError(
                f"{source} does not fit {PIECES_FILE}: use the files that were written together. If its lines are "
                f"whole words, remove {PIECES_FILE}."
            )
        self._model = tokenizer.model
        self._cut: dict[str, list[int]] = {}

    @classmethod
    def read_from(cls, directory: Path) -> PieceVocabulary:
        """Read the files that `write` makes."""
        source = f"The vocabulary '{directory / 'vocab.txt'}'"
        pieces = Vocabulary.read(directory / "vocab.txt").words
        known = directory / KNOWN_WORDS_FILE
        return cls(
            pieces, read_rules(directory / PIECES_FILE), Vocabulary.read(known) if known.is_file() else None, source
        )

    def write(self, path: str | Path) -> None:
        """Write the vocabulary file, and beside it how words are cut."""
        super().write(path)
        write_text(Path(path).with_name(PIECES_FILE), self.rules)
        if self.known is not None:
            self.known.write(Path(path).with_name(KNOWN_WORDS_FILE))

    @property
    def file_hashes(self) -> dict[str, str]:
        """The SHA-256 of the files that `write` puts beside vocab.txt."""
        rules = {PIECES_FILE: hashlib.sha256(self.rules.encode()).hexdigest()}
        return rules if self.known is None else {**rules, KNOWN_WORDS_FILE: self.known.digest}

    @property
    def listed_words(self) -> list[str] | None:
        """The known words, if there is a list of them."""
        return None if self.known is None else self.known.words

    @functools.cached_property
    def starts_word(self) -> NDArray[np.bool_]:
        """Which pieces begin a word."""
        starts_V = np.array([piece.startswith(BLANK) for piece in self.words])
        starts_V[[END, UNK]] = True
        return starts_V

    @functools.cached_property
    def _num_bytes(self) -> NDArray[np.int64]:
        # A piece has a letter for every byte, the blank of its word among them.
        num_bytes_V = np.array([len(piece) for piece in self.words])
        num_bytes_V[END] = 0
        return num_bytes_V

    @functools.cached_property
    def _longest(self) -> int:
        return max(map(len, self.words))

    def encode(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Give the ids of the pieces of words, one word after the other."""
        return self.encode_each(list(words)).ids

    def encode_each(self, words: Sequence[str]) -> WordIds:
        """Give the ids of the pieces of every word; what is unknown, or has blanks and so is no word, gets UNK."""
        cut = [self._cut.get(word) or self._cut_new(word) for word in words]
        length_W = np.fromiter(map(len, cut), dtype=np.int64, count=len(cut))
        ids = np.fromiter(itertools.chain.from_iterable(cut), dtype=np.int64, count=int(length_W.sum()))
        return WordIds(ids, length_W)

    def count_ids(self, words: Sequence[str], most: int) -> int:
        """Count the pieces of words; above `most` the counting ends, and a word that must have so many is not cut."""
        number = 0
        for word in words:
            # No piece is longer than the longest; an unknown word is not cut.
            least = len(word) // self._longest if self.known is None else 1
            number += least if number + least > most else len(self._cut.get(word) or self._cut_new(word))
            if number > most:
                break
        return number

    def spell(self, ids: Iterable[int]) -> list[str]:
        """Put pieces together to words; bytes that are no UTF-8 become U+FFFD."""
        found: list[str] = []
        for number in ids:
            if found and not self.starts_word[number]:
                found[-1] += self.words[number]
            else:
                found.append(self.words[number])
        return [word if word in SPECIALS else _text(word) for word in found]

    def _cut_new(self, word: str) -> list[int]:
        # Several threads of a server come here, so nobody relies on what is kept.
        pieces = self._cut_word(word)
        if len(self._cut) > _CACHED_WORDS:
            self._cut.clear()
        if len(word) <= _CACHED_LETTERS:
            self._cut[word] = pieces
        return pieces

    def _cut_word(self, word: str) -> list[int]:
        if word in SPECIALS:
            return [SPECIALS.index(word)]
        if word.split() != [word] or (self.known is not None and word not in self.known):
            return [UNK]
        # The model alone: what the library does with a whole text before it takes four times as long.
        return [token.id for token in self._model.tokenize(letters(word))]


def read_vocabulary(directory: Path) -> Vocabulary:
    """Read the vocabulary of a corpus or a run: one of pieces, if the directory says how words are cut."""
    if (directory / PIECES_FILE).is_file():
        return PieceVocabulary.read_from(directory)
    return Vocabulary.read(directory / "vocab.txt")


def read_pieces(path: str | Path, known: Vocabulary | None) -> PieceVocabulary:
    """Read pieces from pieces.json alone: it lists them, too."""
    rules = read_rules(Path(path))
    problem = f"'{path}' is not a {PIECES_FILE} from 'bnce prepare'"
    remedy = f"give the {PIECES_FILE} of a corpus or run"
    ids: dict[str, int] = _open_tokenizer(rules, problem, remedy).get_vocab()
    pieces = sorted(ids, key=lambda piece: ids[piece])
    if tuple(pieces[: len(SPECIALS)]) != tuple(SPECIALS) or not ids.keys() >= set(ALPHABET):
        raise UserError(
            f"{problem} (its tokens do not begin with {' and '.join(SPECIALS)}, or some of the 256 bytes are missing): "
            f"{remedy}."
        )
    return PieceVocabulary(pieces, rules, known, f"'{path}'")


def read_rules(path: Path) -> str:
    """Read how words are cut."""
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"'{path}' cannot be read ({error}): give a {PIECES_FILE} from 'bnce prepare'.") from error


def _open_tokenizer(rules: str, problem: str, remedy: str) -> Any:
    library = need_tokenizers()
    try:
        return library.Tokenizer.from_str(rules)
    except Exception as error:  # the library has no other class for it
        raise UserError(f"{problem} ({error}): {remedy}.") from error


def need_tokenizers() -> Any:
    """Give the library that cuts words, or say which extra brings it."""
    return need("tokenizers", "A vocabulary of pieces")


def letters(word: str) -> str:
    """Write a word and the blank before it in letters that stand for bytes."""
    return BLANK + word.encode("utf-8", "replace").decode("latin-1").translate(_LETTER_OF_BYTE)


def _text(spelt: str) -> str:
    return bytes(_BYTE_OF_LETTER[letter] for letter in spelt).decode("utf-8", "replace").removeprefix(" ")
