"""What scoring a text gives, whichever model scored it: probabilities of words by sentence, and their totals.

Logarithms are to the base 10, as SRILM and KenLM print them. OOV words are those outside the vocabulary; they are
scored as `<unk>`, and figures come with and without them. `ppl` counts sentence ends as words, `ppl1` leaves them out
of the count but not out of the sum: that is SRILM's definition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class ScoredSentence:
    """One sentence; `</s>` is the last of its words."""

    words: list[str]
    ids: list[int]
    log10_probs: NDArray[np.float64]
    oov: NDArray[np.bool_]
    ngram_lengths: list[int]  # how many words a probability is about, the start of the sentence and its own among them

    @property
    def log10_prob(self) -> float:
        """The sentence's total, OOV words included."""
        return float(self.log10_probs.sum())

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

    @classmethod
    def of(cls, sentences: Iterable[ScoredSentence]) -> Totals:
        """Sum up some sentences."""
        totals = cls()
        for sentence in sentences:
            totals.add(sentence)
        return totals

    def add(self, sentence: ScoredSentence) -> None:
        """Count one more sentence."""
        counted = ~sentence.oov & (sentence.log10_probs > -np.inf)
        self.num_sentences += 1
        self.num_words += len(sentence.words) - 1
        self.num_oov += sentence.num_oov
        self.num_zero_probs += len(counted) - int(counted.sum()) - sentence.num_oov
        self.log10_prob += sentence.log10_prob
        self.log10_prob_no_oov += float(sentence.log10_probs[counted].sum())

    @property
    def num_tokens(self) -> int:
        """Words and sentence ends."""
        return self.num_words + self.num_sentences

    def perplexities(self) -> dict[str, float | None]:
        """Compute perplexities, with OOV words and without; None where there is nothing to divide by."""
        num_left = self.num_tokens - self.num_oov - self.num_zero_probs
        return {
            "ppl": _perplexity(self.log10_prob, self.num_tokens),
            "ppl1": _perplexity(self.log10_prob, self.num_words),
            "ppl_no_oov": _perplexity(self.log10_prob_no_oov, num_left),
            "ppl1_no_oov": _perplexity(self.log10_prob_no_oov, num_left - self.num_sentences),
        }

    def to_dict(self) -> dict[str, Any]:
        """Give sums and perplexities as JSON has them."""
        return {
            "num_sentences": self.num_sentences,
            "num_words": self.num_words,
            "num_oov": self.num_oov,
            "num_zero_probs": self.num_zero_probs,
            "log10_prob": self.log10_prob,
            "log10_prob_no_oov": self.log10_prob_no_oov,
            **self.perplexities(),
        }


def _perplexity(log10_prob: float, num_tokens: int) -> float | None:
    if num_tokens <= 0:
        return None
    try:
        return float(10.0 ** (-log10_prob / num_tokens))
    except OverflowError:
        return math.inf
