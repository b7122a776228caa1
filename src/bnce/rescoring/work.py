"""The work of rescoring: lists are scored, apart or in context, and weights are found; both are counted and timed."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.rescoring.in_order import score_in_order, tune_in_order
from bnce.rescoring.nbest import NBest
from bnce.rescoring.rescore import Advance, Judge, Scores, score_nbest
from bnce.rescoring.tuning import free_weights, tune
from bnce.scoring.model import Model
from bnce.scoring.weights import FIRST_BEST, OTHER, Weights


@dataclass
class Scorer:
    """Scores lists with one model. With a rule of `in_order.CARRY_FROM`, earlier utterances are the context."""

    model: Model
    normalised: bool = False
    carry_from: str | None = None
    documents: str | None = None
    begin: Advance = lambda num: None  # told how many hypotheses are scored now, maybe once more
    advance: Advance = lambda num: None
    num_scored: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)

    @property
    def by_weights(self) -> bool:
        """Whether the scores depend on the weights, which choose the context."""
        return self.carry_from == "best"

    def score(self, nbest: NBest, by: Weights | None) -> Scores:
        """Score all hypotheses; in context, after the best ones by these weights, or the first ones."""
        begun = time.perf_counter()
        self.begin(nbest.num_hypotheses)
        if self.carry_from is None:
            scores = score_nbest(self.model, nbest, self.advance, normalised=self.normalised)
        else:
            by = by if self.by_weights else None
            scores = score_in_order(self.model, nbest, by, self.documents, self.advance, normalised=self.normalised)
        self.num_scored += nbest.num_hypotheses
        self.seconds += time.perf_counter() - begun
        return scores


@dataclass
class Tuner:
    """Finds weights."""

    start: Weights
    fixed: Collection[str] = ()
    seconds: float = field(default=0.0, init=False)

    def find(self, scores: Scores, num_errors_N: NDArray[np.int64]) -> Weights:
        """Find weights with few errors."""
        begun = time.perf_counter()
        weights = tune(scores, num_errors_N, self.start, self.fixed)
        self.seconds += time.perf_counter() - begun
        return weights

    def work(self, scorer: Scorer, nbest: NBest, judge: Judge) -> tuple[Scores, Weights]:
        """Score lists and find their weights; where scores depend on weights, in rounds."""
        if not scorer.by_weights:
            scores = scorer.score(nbest, self.start)
            return scores, self.find(scores, judge.num_errors_N)
        return tune_in_order(
            lambda by: scorer.score(nbest, by),
            lambda found: self.find(found, judge.num_errors_N),
            lambda found, by: judge.judge(found.best(by)).total > judge.judge(judge.first_U).total,
        )

    def describe(self, scores: Scores, weights: Weights) -> dict[str, Any]:
        """Say what was tuned, as JSON has it."""
        return {
            "num_utterances": len(scores.nbest.utterances),
            "weights": [name.removeprefix(OTHER) for name in free_weights(scores, self.start, self.fixed)],
            "kept_first_best": weights == FIRST_BEST,
        }
