"""How many words are wrong before rescoring, after it and at best, and how far chance may reach.

The bootstrap draws as many utterances as there are, with replacement, over and over. An interval holds the middle 95%
of what the draws give. Every draw has the same utterances before and after (it is paired), so that the difference is
known better than either rate. Utterances count as independent; where speakers differ much, intervals are too narrow.

Legend: U utterances, S draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.errors import counted
from bnce.rescoring.error_rate import Errors
from bnce.rescoring.nbest import NBest
from bnce.rescoring.rescore import Judge

NUM_DRAWS = 1000
SEED = 1  # the same lists give the same intervals
PERCENT = 95
MIN_UTTERANCES = 20  # with fewer, the draws are too much alike to say how far chance may reach


class Interval(NamedTuple):
    """The middle of what the draws give."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{PERCENT}% interval {100 * self.low:.2f} to {100 * self.high:.2f}"


@dataclass(frozen=True)
class Comparison:
    """Word errors of the first, the chosen and the most correct hypotheses, under these names, with intervals."""

    errors: dict[str, Errors]
    intervals: dict[str, Interval]  # none where there are not two utterances with words
    difference: float | None  # of the word error rates, after − before
    num_utterances: int  # with words

    def to_dict(self) -> dict[str, Any]:
        """Give everything as JSON has it."""
        found = {name: {**errors.to_dict(), "interval": self._listed(name)} for name, errors in self.errors.items()}
        return {**found, "difference": {"wer": self.difference, "interval": self._listed("difference")}}

    def lines(self) -> Iterator[str]:
        """Give a line for each rate, one for the difference, and what follows from it."""
        for name, errors in self.errors.items():
            yield f"WER {name:<7}{errors}" + (f"; {self.intervals[name]}%" if name in self.intervals else "")
        if self.difference is None or "difference" not in self.intervals:
            return
        interval = self.intervals["difference"]
        points = f"WER after − before: {100 * self.difference:+.2f} points; {interval} points (paired bootstrap)."
        if self.num_utterances < MIN_UTTERANCES:
            yield f"{points} {self.num_utterances} utterances are too few to judge."
        elif interval.low == interval.high == 0:
            yield f"{points} No rate has changed."
        elif interval.low > 0:
            yield f"{points} Rescoring makes these lists worse."
        elif interval.high < 0:
            yield f"{points} Rescoring makes these lists better."
        else:
            yield f"{points} This may be chance."

    def _listed(self, name: str) -> list[float] | None:
        return list(self.intervals[name]) if name in self.intervals else None


class Changes(NamedTuple):
    """How many utterances have another best hypothesis than the first of their list, and which of the two is better."""

    num_changed: int
    num_better: int
    num_worse: int

    def __str__(self) -> str:
        return (
            f"Another hypothesis was chosen for {counted(self.num_changed, 'utterance')}: {self.num_better} with fewer "
            f"errors, {self.num_worse} with more."
        )


def count_changes(nbest: NBest, judge: Judge, best_U: NDArray[np.int64]) -> Changes:
    """Compare the texts of chosen hypotheses, by their places among all, with those of the first ones."""
    texts = [text for utterance in nbest.utterances for text in utterance.texts]
    pairs = zip(judge.first_U.tolist(), best_U.tolist(), strict=True)
    fewer_U = judge.num_errors_N[judge.first_U] - judge.num_errors_N[best_U]
    return Changes(
        sum(texts[first] != texts[best] for first, best in pairs),
        int(np.count_nonzero(fewer_U > 0)),
        int(np.count_nonzero(fewer_U < 0)),
    )


def compare(judge: Judge, best_U: NDArray[np.int64]) -> Comparison:
    """Compare chosen hypotheses, by their places among all, with the first ones and the most correct ones."""
    places = {"before": judge.first_U, "after": best_U, "oracle": judge.oracle_U}
    errors = {name: judge.judge(place_U) for name, place_U in places.items()}
    before, after = errors["before"].wer, errors["after"].wer
    num_utterances = int(np.count_nonzero(judge.num_words_U))
    if before is None or after is None:
        return Comparison(errors, {}, None, num_utterances)
    intervals = {}
    if num_utterances > 1:
        columns_U = np.stack([judge.num_words_U, *(judge.num_errors_N[place_U] for place_U in places.values())], axis=1)
        drawn = dict(zip(places, _draw(columns_U), strict=True))
        drawn["difference"] = drawn["after"] - drawn["before"]
        tail = (100 - PERCENT) / 2
        for name, rate_S in drawn.items():
            low, high = np.percentile(rate_S, [tail, 100 - tail]).tolist()
            intervals[name] = Interval(low, high)
    return Comparison(errors, intervals, after - before, num_utterances)


def _draw(columns_U: NDArray[np.int64]) -> NDArray[np.float64]:
    """Draw utterances and give the rates of errors per word of all draws, by kinds of hypotheses (…, S)."""
    generator = np.random.default_rng(SEED)
    num = len(columns_U)
    sums_S = np.stack([columns_U[generator.integers(num, size=num)].sum(axis=0) for _ in range(NUM_DRAWS)])
    sums_S = sums_S[sums_S[:, 0] > 0]  # a draw may have only utterances in which nothing was said
    rates: NDArray[np.float64] = (sums_S[:, 1:] / sums_S[:, :1]).T
    return rates
