"""The entropy of the next word, exactly: −Σ p ln p over the vocabulary, before every word of a text. In nats.

`<unk>` and `</s>` are words that may come next, each as one. A run computes many positions at once; an n-gram model and
a mixture go word by word, which is slow.

Legend: N positions, P rows of the hidden layer, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bnce.errors import UserError, argument
from bnce.scoring.batches import SentenceScorer
from bnce.scoring.engine import Array, Ints
from bnce.scoring.interpolation import components_of
from bnce.scoring.model import Model, Words
from bnce.scoring.run_model import RunModel
from bnce.scoring.scored import Floats


class EntropyScorer(SentenceScorer):
    """Gives the entropy before every word instead of its ln p."""

    def _values(self, hidden_PD: Array, place_N: Ints, target_N: Ints) -> Floats:
        place_P, place_N = np.unique(place_N, return_inverse=True)
        entropy_P: Floats = self.engine.entropy(self.engine.take(hidden_PD, place_P))
        return entropy_P[place_N]


class EntropyReader:
    """Reads the sentences of a text in their order; runs continue from the sentence before."""

    def __init__(self, model: Model) -> None:
        _refuse(model)
        self.model = model
        self._scorer = EntropyScorer(model.engine, normalised=True, carry=True) if isinstance(model, RunModel) else None
        self._state = None if self._scorer else model.start()

    def begin_document(self) -> None:
        """Start afresh: forget the earlier sentences."""
        if self._scorer is None:
            self._state = self.model.start()
        else:
            self._scorer.begin_document()

    def score(self, sentences: Sequence[Words]) -> list[Floats]:
        """Compute the entropy before every word of the next sentences, and before their `</s>`."""
        if self._scorer is not None:
            return self._scorer.score([self.model.encode(words) for words in sentences])
        return [self._by_word(words) for words in sentences]

    def _by_word(self, words: Words) -> Floats:
        spelt, state = self.model.vocabulary.words, self._state
        found = []
        for place in range(len(words) + 1):
            log_prob_V = self.model.next_log_probs(state, spelt, normalised=True)
            log_prob_V = log_prob_V[log_prob_V > -np.inf]
            found.append(-float(np.exp(log_prob_V) @ log_prob_V))
            if place < len(words):
                state = self.model.advance(state, words[place])
        (self._state,) = self.model.read_words([self._state], [words])
        return np.array(found)


def _refuse(model: Model) -> None:
    """Refuse models whose probabilities of the next word cannot be listed."""
    known = {frozenset(part.vocabulary.words): part.name for part in components_of(model)}
    if len(known) > 1:
        first, second = list(known.values())[:2]
        raise UserError(
            f"'{first}' and '{second}' have different vocabularies, so the probabilities of their mixture do not sum "
            f"to 1: leave out {argument('entropy')}, or mix models with the same vocabulary."
        )
