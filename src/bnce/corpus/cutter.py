"""Text cut into words and ids, as the training text was: the one way from a user's text to what a model reads.

A `Tokens` holds many sequences, flat. A sequence is mostly a sentence with its `</s>`; carried over, it is several
sentences, each with its own; and where a search asks for the next word, it is words without `</s>`.

Legend: S sequences, N words of all of them with every `</s>`, T texts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import Vocabulary
from bnce.errors import UserError, shown
from bnce.text.normalise import END_WORD, Normaliser
from bnce.text.records import DEFAULT_FIELD
from bnce.text.sources import batches
from bnce.text.tokenised import TokenisedSigns

# Characters cut at once, so that neighbours in length are alike and memory is bounded; a short text counts as this many
# at least.
BLOCK_CHARACTERS = 2**21
MIN_CHARACTERS = 64

Ints = NDArray[np.int64]
Sentences = Literal["one", "split"]


@dataclass(frozen=True)
class Tokens:
    """Sequences of words, one after the other, with what was changed on the way."""

    words: list[str]
    num_words_S: Ints  # with `</s>`
    ids: Ints | None = None  # of `words`, once somebody has encoded them
    num_sequences_T: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    num_changed: int = 0  # texts that were brought into the form of the training text
    num_several: int = 0  # texts that are one sequence here, and several sentences to the normaliser

    @classmethod
    def of(cls, sequences: Iterable[Sequence[str]], end: bool = True) -> Tokens:
        """Take sequences that are cut into words, and put `</s>` after each unless `end` is false."""
        if isinstance(sequences, str):
            raise one_string(sequences)
        flat: list[str] = []
        lengths: list[int] = []
        for words in sequences:
            if isinstance(words, str):
                raise one_string(words)
            flat += words
            if end:
                flat.append(END_WORD)
            lengths.append(len(words) + end)
        return cls(flat, np.array(lengths, dtype=np.int64))

    def encoded(self, vocabulary: Vocabulary) -> Tokens:
        """Give the same words with the ids of a vocabulary."""
        return replace(self, ids=vocabulary.encode(self.words))

    def joined(self) -> Tokens:
        """Give the same words as one sequence."""
        return replace(self, num_words_S=np.array([len(self.words)], dtype=np.int64))

    def first(self, num_sequences: int) -> Tokens:
        """Give the first sequences."""
        length_S = self.num_words_S[:num_sequences]
        end = int(length_S.sum())
        return Tokens(self.words[:end], length_S, None if self.ids is None else self.ids[:end])

    def __len__(self) -> int:
        return len(self.num_words_S)

    def __iter__(self) -> Iterator[list[str]]:
        """Give the words of one sequence after the other."""
        ends = np.cumsum(self.num_words_S).tolist()
        return (self.words[begin:end] for begin, end in itertools.pairwise([0, *ends]))

    @property
    def sequences(self) -> list[Ints]:
        """The ids of one sequence after the other."""
        assert self.ids is not None  # networks have a vocabulary
        ends = np.cumsum(self.num_words_S).tolist()
        return [self.ids[begin:end] for begin, end in itertools.pairwise([0, *ends])]


def one_string(text: str) -> UserError:
    """Say that a text is no list of words."""
    return UserError(f"The words are one string, {shown(text)}: give a list of words, such as model.words('a text').")


def _is_changed(text: str, words: list[str]) -> bool:
    """Say whether words are not those between the blanks of a text; mostly the first ones tell."""
    return words[:4] != text.split(None, 4)[:4] or (" ".join(words) != text and words != text.split())


class Cutter:
    """Cuts texts into words by one rule; `signs` notices text that was tokenised before."""

    def __init__(self, normaliser: Normaliser) -> None:
        self.normaliser = normaliser
        self.signs = TokenisedSigns(normaliser)

    def cut(self, texts: Sequence[str], sentences: Sentences = "one", keep_empty: bool = False) -> Tokens:
        """Cut texts: each is "one" sentence, or is "split" into sentences as the training text was.

        A text that is split and has no words has no sentence, or with `keep_empty` an empty one.
        """
        flat: list[str] = []
        lengths: list[int] = []
        num_sequences: list[int] = []
        num_changed = num_several = 0
        is_one = sentences == "one"
        for text in texts:
            self.signs.look(text)
            lines = [text.replace("\n", " ")] if is_one else text.split("\n")
            found = [words for line in lines for words in self.normaliser(line)]
            every = found[0] if len(found) == 1 else list(itertools.chain.from_iterable(found))
            num_changed += _is_changed(text, every)
            num_several += is_one and len(found) > 1
            if is_one or (keep_empty and not found):
                found = [every]
            for words in found:
                flat += words
                flat.append(END_WORD)
                lengths.append(len(words) + 1)
            num_sequences.append(len(found))
        counts = np.array(num_sequences, dtype=np.int64), num_changed, num_several
        return Tokens(flat, np.array(lengths, dtype=np.int64), None, *counts)

    def cut_in_blocks(
        self, texts: Iterable[str], sentences: Sentences = "one", keep_empty: bool = False
    ) -> Iterator[Tokens]:
        """Cut a stream of texts, many at once and in bounded memory."""
        for block in batches(texts, lambda text: max(len(text), MIN_CHARACTERS), BLOCK_CHARACTERS):
            yield self.cut(block, sentences, keep_empty)

    def cut_file(self, path: str) -> Iterator[Tokens]:
        """Cut the lines of a file of any kind into sentences, those of records among them; blank lines are left out."""
        from bnce.text.intake import read_text

        return self.cut_in_blocks(itertools.chain.from_iterable(read_text(path, DEFAULT_FIELD)), "split")
