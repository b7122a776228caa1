"""What models say of text: probabilities of words, of sentences and of all.

Logarithms are natural; JSON has them to the base 10, as the layouts do. OOV words are those outside the vocabulary;
they are scored as `<unk>`, and figures come with and without them. `ppl` counts sentence ends as words, `ppl1` leaves
them out of the count but not out of the sum: that is SRILM's definition.

Legend: S sequences, N words of all of them with every `</s>`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.cutter import Tokens
from bnce.engine.network import Mode
from bnce.evaluation.breakdown import perplexity
from bnce.text.normalise import END_WORD

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LN_10 = math.log(10)


@dataclass(frozen=True, eq=False)
class ScoredSentence:
    """One sentence; `</s>` is the last of its words. Words without numbers have the id 0."""

    words: list[str]
    ids: list[int]
    log_probs: Floats
    oov: Bools
    ngram_lengths: Ints  # how many words each probability is about: the start of the sentence is one, and itself

    @property
    def log_prob(self) -> float:
        """The sentence's total, OOV words included."""
        return float(self.log_probs.sum())

    @property
    def num_oov(self) -> int:
        """How many of the words are not in the vocabulary."""
        return int(self.oov.sum())

    def to_dict(self) -> dict[str, Any]:
        """Give the sentence as one JSON object has it: logarithms to the base 10, as those of the layouts."""
        return {
            "words": self.words,
            "log10_probs": (self.log_probs / LN_10).tolist(),
            "oov": self.oov.tolist(),
            "log10_prob": self.log_prob / LN_10,
            "num_oov": self.num_oov,
            **Totals.of([self]).perplexities(),
        }


class Sums(NamedTuple):
    """What is left of every sequence of a text where no single word is asked for."""

    text: Tokens
    log_prob_S: Floats
    num_oov_S: Ints
    log_prob_known: float  # of all words that are known and have a probability
    num_zero_probs: int = 0  # words of the vocabulary with no probability at all


@dataclass(frozen=True, eq=False)
class WordScores:
    """The words of a text, flat; iterating gives the sentences. `states` are those after its sequences, where kept."""

    text: Tokens
    log_prob_N: Floats
    oov_N: Bools
    ngram_length_N: Ints
    mode: Mode
    states: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, number: int) -> ScoredSentence:
        return list(self)[number]

    def __iter__(self) -> Iterator[ScoredSentence]:
        words = self.text.words
        ids = [0] * len(words) if self.text.ids is None else self.text.ids.tolist()
        for begin, end in itertools.pairwise([0, *np.cumsum(self.text.num_words_S).tolist()]):
            own = slice(begin, end)
            yield ScoredSentence(words[own], ids[own], self.log_prob_N[own], self.oov_N[own], self.ngram_length_N[own])

    @property
    def totals(self) -> Floats:
        """ln p of every sequence (S,)."""
        return add_up(self.log_prob_N, self.text.num_words_S)

    @property
    def num_oov(self) -> Ints:
        """How many words of every sequence are unknown (S,)."""
        return add_up(self.oov_N.astype(np.int64), self.text.num_words_S)

    def sums(self) -> Sums:
        """Add up every sequence."""
        counted_N = ~self.oov_N & (self.log_prob_N > -np.inf)
        num_zero_probs = int((~self.oov_N & ~counted_N).sum())
        return Sums(self.text, self.totals, self.num_oov, float(self.log_prob_N[counted_N].sum()), num_zero_probs)


def add_up(value_N: NDArray[Any], num_words_S: Ints) -> NDArray[Any]:
    """Sum values by sequence; a sequence may be empty."""
    # With one 0 more, because a sequence without words may begin at the end of all; reduceat gives one value there.
    begin_S = np.cumsum(num_words_S) - num_words_S
    sum_S = np.add.reduceat(np.append(value_N, value_N.dtype.type(0)), begin_S) if len(begin_S) else value_N[:0]
    return np.where(num_words_S > 0, sum_S, value_N.dtype.type(0))


@dataclass
class Totals:
    """Sums over sentences, and the perplexities that follow from them."""

    num_sentences: int = 0
    num_words: int = 0  # sentence ends not counted
    num_oov: int = 0
    num_zero_probs: int = 0  # words of the vocabulary with no probability at all
    log_prob: float = 0.0  # of all words and sentence ends
    log_prob_no_oov: float = 0.0  # less OOV words and those of no probability
    num_bytes: int = 0  # of the text that the words are: UTF-8, a blank between words, a newline after a sentence

    @classmethod
    def of(cls, sentences: Iterable[ScoredSentence]) -> Totals:
        """Sum up some sentences."""
        totals = cls()
        for one in sentences:
            text = Tokens(one.words, np.array([len(one.words)]))
            totals.add(WordScores(text, one.log_probs, one.oov, one.ngram_lengths, "normalised").sums())
        return totals

    def add(self, sums: Sums) -> None:
        """Count the sentences of a text."""
        text = sums.text
        self.num_sentences += len(text)
        self.num_words += len(text.words) - len(text)
        self.num_oov += int(sums.num_oov_S.sum())
        self.num_zero_probs += sums.num_zero_probs
        self.log_prob += float(sums.log_prob_S.sum())
        self.log_prob_no_oov += sums.log_prob_known
        num_letters = len("".join(text.words).encode("utf-8", "surrogatepass")) - len(END_WORD) * len(text)
        # A sentence of n words has n - 1 blanks and a newline, and one without words its newline.
        self.num_bytes += num_letters + int(np.maximum(text.num_words_S - 1, 1).sum())

    @property
    def num_tokens(self) -> int:
        """Words and sentence ends."""
        return self.num_words + self.num_sentences

    def perplexities(self) -> dict[str, float | None]:
        """Compute perplexities, with OOV words and without; None where there is nothing to divide by."""
        num_left = self.num_tokens - self.num_oov - self.num_zero_probs
        return {
            "ppl": perplexity(self.log_prob, self.num_tokens),
            "ppl1": perplexity(self.log_prob, self.num_words),
            "ppl_no_oov": perplexity(self.log_prob_no_oov, num_left),
            "ppl1_no_oov": perplexity(self.log_prob_no_oov, num_left - self.num_sentences),
        }

    @property
    def bits_per_byte(self) -> float | None:
        """The bits that a byte of the text takes; None where some word counts as `<unk>`, whose bytes nobody knows."""
        if self.num_oov or not self.num_bytes:
            return None
        return -self.log_prob / math.log(2) / self.num_bytes

    def to_dict(self) -> dict[str, Any]:
        """Give sums and perplexities as JSON has them, logarithms to the base 10."""
        found = {name.replace("log_", "log10_"): value for name, value in asdict(self).items()}
        found |= {name: value / LN_10 for name, value in found.items() if name.startswith("log10_")}
        return {**found, "bits_per_byte": self.bits_per_byte, **self.perplexities()}


class NextWord(NamedTuple):
    """A word that may come next; probabilities sum to one over the vocabulary when they are normalised."""

    word: str
    log_prob: float

    @property
    def prob(self) -> float:
        """The probability."""
        return math.exp(self.log_prob)


class RescoredHypothesis(NamedTuple):
    """A hypothesis with its scores; `place` is its place in the given list."""

    text: str
    total: float
    score: float  # the one it came with
    log_prob: float  # of all its words and </s>
    place: int
