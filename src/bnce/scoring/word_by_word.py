"""What any model can do that advances word by word and gives the probabilities of the next word: general, but slow.

The next word is one of the model's `vocabulary`. A run has faster ways of its own.

Legend: B states, K words per state, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import END
from bnce.scoring.sampling import Sampling, check_texts, highest, sample_words
from bnce.scoring.scored import Floats, NextWord

if TYPE_CHECKING:
    from bnce.scoring.model import Model


def likeliest(model: Model, prompt: Sequence[str], k: int, normalised: bool) -> list[NextWord]:
    """Find the k most likely words after a prompt."""
    words = model.vocabulary.words
    log_prob_V = model.next_log_probs(_after(model, prompt), words, normalised=normalised)
    return [NextWord.of(words[place], float(log_prob_V[place])) for place in highest(log_prob_V[None], k)[0]]


def continue_words(
    model: Model, words: Sequence[str], num_texts: int, max_words: int, sampling: Sampling, seed: int
) -> list[list[int]]:
    """Continue words in several ways, each up to `</s>` or `max_words` words; returns the ids of the new words."""
    check_texts(num_texts, max_words, seed)
    spelt = model.vocabulary.words
    generator = np.random.default_rng(seed)
    prompt = _after(model, words)
    texts: list[list[int]] = []
    for _ in range(num_texts):
        state = prompt
        made: list[int] = []
        while len(made) < max_words and (not made or made[-1] != END):
            score_BV = model.next_log_probs(state, spelt, normalised=True)[None]
            made.append(int(sample_words(score_BV, sampling, generator)[0]))
            state = model.advance(state, spelt[made[-1]])
        texts.append(made)
    return texts


class WordScorer:
    """Answers a beam search: states that move on by a word, and ln p of words after them; words are ids."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def start(self) -> Any:
        """Give the state at the start of a sentence."""
        return self.model.start()

    def advance(self, states: Sequence[Any], words: Any) -> list[Any]:
        """Move each state on by one word."""
        spelt = self.model.vocabulary.decode(_numbers(words).tolist())
        return [self.model.advance(state, word) for state, word in zip(states, spelt, strict=True)]

    def score(self, states: Sequence[Any], words: Any, normalised: bool = False) -> Floats:
        """Compute ln p of words after states: one each (B,) or several each (B, K)."""
        if not normalised:
            self.model.refuse_unnormalised()
        numbers = _numbers(words)
        spelt = [self.model.vocabulary.decode(row) for row in numbers.reshape(len(states), -1).tolist()]
        pairs = zip(states, spelt, strict=True)
        found = [self.model.next_log_probs(state, row, normalised=normalised) for state, row in pairs]
        return np.array(found, dtype=np.float64).reshape(numbers.shape)


def _after(model: Model, words: Sequence[str]) -> Any:
    return functools.reduce(model.advance, words, model.start())


def _numbers(words: Any) -> NDArray[np.int64]:
    return np.asarray(words.cpu() if hasattr(words, "cpu") else words).astype(np.int64)
