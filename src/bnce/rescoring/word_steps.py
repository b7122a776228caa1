"""A decoder's words, one at a time: their probabilities after a state, and the state after them.

A decoder spells words as its lexicon does, and the model has them as its training text had: a word may be several to
the model, or none.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

from bnce.corpus.cutter import Tokens
from bnce.scoring.model import Model, State
from bnce.scoring.ngram_model import NgramModel
from bnce.text.normalise import END_WORD, UNKNOWN_WORD

_KEPT_WORDS = 2**16
# What an LSTM is told to remember, where a decoder asks for an order to decide which histories are the same.
_HISTORY_WORDS = 10


class Step(NamedTuple):
    """What a word costs: its natural log-probability, and how many words it is that the model does not know."""

    log_prob: float
    num_oov: int


class WordSteps:
    """Steps through a model word by word; where it was trained with the softmax, probabilities are normalised."""

    def __init__(self, model: Model, normalised: bool = False) -> None:
        self.model, self.mode = model, model.choose_mode("normalised" if normalised else None)
        self.read = functools.lru_cache(_KEPT_WORDS)(self._read_word)

    @property
    def order(self) -> int:
        """The words of a history that a decoder should compare, and one more."""
        if isinstance(self.model, NgramModel):
            return int(self.model.model.order)
        most = self.model.max_context
        return most + 1 if most is not None and most < _HISTORY_WORDS else _HISTORY_WORDS

    def score(self, state: State, word: str) -> Step:
        """Score a word after a state."""
        log_prob, num_oov = 0.0, 0
        words = self.read(word)
        for place, own in enumerate(words):
            log_prob += float(self.model.next_log_probs(state, [own], mode=self.mode)[0])
            num_oov += own != END_WORD and not self.model.is_known(own)
            if place + 1 < len(words):
                state = self.model.advance(state, own)
        return Step(log_prob, num_oov)

    def ngram_length(self, state: State, history: Iterable[str], word: str) -> int:
        """Say how many of the model's words the last of a word depends on, and itself: 0 for a word that is none."""
        words = self.read(word)
        if not words:
            return 0
        before = [own for one in (*history, word) for own in self.read(one)][:-1]
        for own in words[:-1]:
            state = self.model.advance(state, own)
        if isinstance(self.model, NgramModel):
            return int(self.model.log_probs(Tokens.of([words[-1:]], None, end=False), after=[state]).ngram_length_N[0])
        return 1 + min(len(before) + 1, self.model.max_context or len(before) + 1)

    def advance(self, state: State, word: str) -> State:
        """Give the state after a word."""
        for own in self.read(word):
            state = self.model.advance(state, own)
        return state

    def _read_word(self, word: str) -> tuple[str, ...]:
        return (word,) if word in (END_WORD, UNKNOWN_WORD) else tuple(self.model.words(word))
