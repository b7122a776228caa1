"""The results of all models: probabilities of words by sentence, totals, next words, sorted hypotheses.

`WordScores` has natural logarithms, as models compute them; sentences and totals have logarithms to the base 10, as
SRILM and KenLM print them. OOV words are those outside the vocabulary; they are scored as `<unk>`, and figures come
with and without them. `ppl` counts sentence ends as words, `ppl1` leaves them out of the count but not out of the sum:
that is SRILM's definition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.evaluation.breakdown import perplexity
from bnce.text.normalise import END_WORD

Floats = NDArray[np.float64]


class WordScores(NamedTuple):
    """A sentence's words and its `</s>`: ln p, which of them are unknown, and how many words each ln p is about."""

    log_probs: Floats
    oov: NDArray[np.bool_]
    ngram_lengths: list[int]


@dataclass(frozen=True, eq=False)
class ScoredSentence:
    """One sentence; `</s>` is the last of its words."""

    words: list[str]
    ids: list[int]
    log10_probs: Floats
    oov: NDArray[np.bool_]
    ngram_lengths: list[int]  # how many words a probability is about, the start of the sentence and its own among them

    @classmethod
    def of(cls, words: Sequence[str], scores: WordScores, ids: Sequence[int] = ()) -> ScoredSentence:
        """Write up a sentence: `</s>` after its words, and logarithms to the base 10."""
        log10_probs = scores.log_probs / math.log(10)
        return cls([*words, END_WORD], list(ids), log10_probs, scores.oov, scores.ngram_lengths)

    @property
    def log10_prob(self) -> float:
        """The sentence's total, OOV words included."""
        total: float = sum(self.log10_probs.tolist())  # for a few numbers a quarter of the time that NumPy takes
        return total

    @property
    def num_oov(self) -> int:
        """How many of the words are not in the vocabulary."""
        return int(self.oov.sum())

    def to_dict(self) -> dict[str, Any]:
        """Give the sentence as one JSON object has it."""
        return {
            "words": self.words,
            "log10_probs": self.log10_probs.tolist(),
            "oov": self.oov.tolist(),
            "log10_prob": self.log10_prob,
            "num_oov": self.num_oov,
            **Totals.of([self]).perplexities(),
        }


@dataclass
class Totals:
    """Sums over sentences, and the perplexities that follow from them."""

    num_sentences: int = 0
    num_words: int = 0  # sentence ends not counted
    num_oov: int = 0
    num_zero_probs: int = 0  # words of the vocabulary with no probability at all
    log10_prob: float = 0.0  # of all words and sentence ends
    log10_prob_no_oov: float = 0.0  # less OOV words and those of no probability
    num_bytes: int = 0  # of the text that the words are: UTF-8, a blank between words, a newline after a sentence

    @classmethod
    def of(cls, sentences: Iterable[ScoredSentence]) -> Totals:
        """Sum up some sentences."""
        totals = cls()
        for sentence in sentences:
            totals.add(sentence)
        return totals

    def add(self, sentence: ScoredSentence) -> None:
        """Count one more sentence."""
        # Of lists, which for the few words of a sentence take a quarter of the time that NumPy's arrays take.
        values, oov = sentence.log10_probs.tolist(), sentence.oov.tolist()
        num_oov, log10_prob = oov.count(True), sum(values)
        counted = values
        if num_oov or not log10_prob > -math.inf:
            counted = [value for value, is_oov in zip(values, oov, strict=True) if not is_oov and value > -math.inf]
        self.num_sentences += 1
        self.num_words += len(sentence.words) - 1
        self.num_bytes += count_bytes(sentence.words[:-1])
        self.num_oov += num_oov
        self.num_zero_probs += len(values) - len(counted) - num_oov
        self.log10_prob += log10_prob
        self.log10_prob_no_oov += log10_prob if counted is values else sum(counted)

    @property
    def num_tokens(self) -> int:
        """Words and sentence ends."""
        return self.num_words + self.num_sentences

    def perplexities(self) -> dict[str, float | None]:
        """Compute perplexities, with OOV words and without; None where there is nothing to divide by."""
        num_left = self.num_tokens - self.num_oov - self.num_zero_probs
        return {
            "ppl": perplexity(self.log10_prob, self.num_tokens, log10=True),
            "ppl1": perplexity(self.log10_prob, self.num_words, log10=True),
            "ppl_no_oov": perplexity(self.log10_prob_no_oov, num_left, log10=True),
            "ppl1_no_oov": perplexity(self.log10_prob_no_oov, num_left - self.num_sentences, log10=True),
        }

    @property
    def bits_per_byte(self) -> float | None:
        """The bits that a byte of the text takes; None where some word counts as `<unk>`, whose bytes nobody knows."""
        if self.num_oov or not self.num_bytes:
            return None
        return -self.log10_prob / math.log10(2) / self.num_bytes

    def to_dict(self) -> dict[str, Any]:
        """Give sums and perplexities as JSON has them."""
        return {**asdict(self), "bits_per_byte": self.bits_per_byte, **self.perplexities()}


def count_bytes(words: Sequence[str]) -> int:
    """Count the bytes of a sentence: its words in UTF-8, a blank between two, a newline at the end."""
    return len((" ".join(words) + "\n").encode("utf-8", "surrogatepass"))


@dataclass(frozen=True)
class NextWord:
    """A word that may come next; probabilities sum to one over the vocabulary when they are normalised."""

    word: str
    prob: float
    log10_prob: float

    @classmethod
    def of(cls, word: str, log_prob: float) -> NextWord:
        """Give a word of this ln p."""
        return cls(word, math.exp(log_prob), log_prob / math.log(10))


@dataclass(frozen=True)
class RescoredHypothesis:
    """A hypothesis with its scores; `place` is its place in the given list."""

    text: str
    total: float
    score: float  # the one it came with
    log_prob: float  # natural logarithm, of all its words and </s>
    place: int
