"""Models opened for a table: exact, or with the constant Z and compared with the exact values at a sample of words."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bnce.errors import UserError, argument
from bnce.scoring.batches import Check
from bnce.scoring.model import Model, Reader, Words
from bnce.scoring.run_model import RunModel
from bnce.scoring.scored import WordScores
from bnce.tables.columns import Measuring

NUM_CHECKED = 1000


class CheckedReader(Reader):
    """Reads with the constants of several models, and the first sentences with the softmax, too."""

    def __init__(self, model: Model, spell: bool) -> None:
        super().__init__(model, False, spell)
        self._readers = [model.reader(normalised=exact, carry=True, spell=spell) for exact in (False, True)]
        self._difference = np.zeros(0)

    def score(self, sentences: Sequence[Words]) -> list[WordScores]:
        """Score the next sentences; as long as some are to be checked, twice."""
        constant, exact = self._readers
        found = constant.score(sentences)
        if len(self._difference) < NUM_CHECKED:
            pairs = zip(found, exact.score(sentences), strict=True)
            new = [one.log_probs - other.log_probs for one, other in pairs]
            self._difference = np.concatenate([self._difference, *new])
        return found

    def begin_document(self) -> None:
        """Let both forget."""
        for reader in self._readers:
            reader.begin_document()

    def check(self) -> Check:
        """Tell how far the constants are from the truth at the first words; there is no one ln Z."""
        sample, nan = self._difference[:NUM_CHECKED], math.nan
        if not len(sample):
            return Check(0, nan, nan, nan, nan, nan)
        return Check(len(sample), float(sample.mean()), float(np.abs(sample).max()), nan, nan, nan)


def open_reader(model: Model, measuring: Measuring) -> Reader:
    """Open a model for the rows of a table."""
    if measuring.normalised:
        return model.reader(normalised=True, carry=True, spell=measuring.spell)
    if not model.has_constant:
        raise UserError(
            f"'{model.name}' is an n-gram model, whose probabilities are normalised: use "
            f"{argument('normalised', True)}."
        )
    if not model.self_normalised:
        raise UserError(
            f"'{model.name}' was trained with a loss without a constant Z, so all its probabilities are normalised: "
            f"use {argument('normalised', True)}."
        )
    if isinstance(model, RunModel):
        return model.reader(carry=True, spell=measuring.spell, num_checked=NUM_CHECKED)
    return CheckedReader(model, measuring.spell)
