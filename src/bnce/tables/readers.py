"""Models opened for a table: exact, or with the constant Z and compared with the exact values at the first words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnce.corpus.cutter import Tokens
from bnce.engine.network import Query
from bnce.errors import UserError, argument
from bnce.scoring.interpolation import components_of
from bnce.scoring.model import Model, Words
from bnce.scoring.results import Floats, SequenceScores
from bnce.scoring.run_model import RunModel
from bnce.tables.columns import Measuring

NUM_CHECKED = 1000


@dataclass(frozen=True)
class Check:
    """How far the constant is from the truth at some positions; differences of ln p are unnormalised − exact."""

    num_positions: int
    mean_difference: float
    max_difference: float  # of absolute values


class Reader:
    """Scores the sentences of a text in their order; runs continue from the sentence before."""

    def __init__(self, model: Model, measuring: Measuring) -> None:
        self.model, self.spell = model, measuring.spell
        self.modes = [model.choose_mode("normalised" if measuring.normalised else "unnormalised")]
        self.modes += ["normalised"] if self.modes == ["unnormalised"] else []
        self._difference = np.zeros(0)
        if self.spell:
            model.refuse_spelling()
        self.begin_document()

    def begin_document(self) -> None:
        """Start afresh: forget the earlier sentences."""
        self._states: list[Any] = [self.model.start() for _ in self.modes]

    def score(self, sentences: Sequence[Words]) -> list[SequenceScores]:
        """Score the next sentences; as long as some are to be checked, twice."""
        text, found = Tokens.of(sentences, self.model.numbering), []
        num_modes = len(self.modes) if len(self._difference) < NUM_CHECKED else 1
        for place, mode in enumerate(self.modes[:num_modes]):
            after = [self._states[place]]
            scores = self.model.log_probs(text.joined(), mode=mode, spell=self.spell, after=after, keep_states=True)
            (self._states[place],) = scores.states or after
            found.append(replace(scores, num_words_S=text.num_words_S))
        if num_modes > 1:
            own, exact = found
            self._difference = np.concatenate([self._difference, own.log_prob_N - exact.log_prob_N])
        return list(found[0])

    def check(self) -> Check | None:
        """Tell how far the constant is from the truth at the first words."""
        if len(self.modes) == 1:
            return None
        sample = self._difference[:NUM_CHECKED]
        if not len(sample):
            return Check(0, math.nan, math.nan)
        return Check(len(sample), float(sample.mean()), float(np.abs(sample).max()))


class EntropyReader:
    """Gives the entropy before every word, in nats: exactly, −Σ p ln p over the vocabulary."""

    def __init__(self, model: Model) -> None:
        known = {frozenset(part.vocabulary.words): part.name for part in components_of(model)}
        if len(known) > 1:
            first, second = list(known.values())[:2]
            raise UserError(
                f"'{first}' and '{second}' have different vocabularies, so the probabilities of their mixture do not "
                f"sum to 1: leave out {argument('entropy')}, or mix models with the same vocabulary."
            )
        self.model = model
        self.begin_document()

    def begin_document(self) -> None:
        """Start afresh: forget the earlier sentences."""
        self._state = self.model.start()

    def score(self, sentences: Sequence[Words]) -> list[Floats]:
        """Compute the entropy before every word of the next sentences, and before their `</s>`."""
        text = Tokens.of(sentences, self.model.numbering)
        if isinstance(self.model, RunModel):
            values, states = self.model.answer(
                text.joined(), Query(entropy=True), after=[self._state], keep_states=True
            )
            self._state = (states or [self._state])[0]
            assert values.entropy_N is not None
            return np.split(values.entropy_N, np.cumsum(text.num_words_S)[:-1])
        found = []
        for words in text:
            entropies = []
            for word in words:
                log_prob_V = self.model.distribution(self._state, mode="normalised")
                log_prob_V = log_prob_V[log_prob_V > -np.inf]
                entropies.append(-float(np.exp(log_prob_V) @ log_prob_V))
                self._state = self.model.advance(self._state, word)
            found.append(np.array(entropies))
        return found


def open_reader(model: Model, measuring: Measuring) -> Reader:
    """Open a model for the rows of a table."""
    return Reader(model, measuring)
