"""Weights that make few word errors on lists with references, and change no more hypotheses than they must.

Only ratios between weights decide, so one stays as it is: the acoustic weight, or without acoustic scores that of the
rank. From several starts, each other weight in turn takes the best of a grid of values, then of finer grids around it.
Among equally good neighbours on a grid the middle one is taken: it is the least a matter of luck.

The fewest errors of some thousand trials are partly luck, too, the more so the fewer utterances there are. So they only
set the mark. Of all weights that were tried and are within chance of it, those are taken that leave the most first
hypotheses as they are; the first hypotheses themselves are one of the trials. Within chance is at most one standard
error of the difference, utterance by utterance. On small parts of real lists, two lost much of the gain, and without
the rule tuned weights lost to the first hypotheses of other lists more often. Changes are counted, and not the weights'
sizes, because acoustic scores may have any scale.

Legend: U utterances, N hypotheses of all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bnce.rescoring.nbest import OLD_LM
from bnce.rescoring.rescore import Scores
from bnce.scoring.weights import FIRST_BEST, NAMES, OTHER, Weights

# Doublings: acoustic scores may come at any scale, so that a language model's weight may be 0.02 or 30.
_COARSE = 2.0 ** np.arange(-8, 8)
_FINE = (2.0 ** (np.arange(-8, 9) / 8), 2.0 ** (np.arange(-8, 9) / 64))
_STARTS = (0.25, 1.0, 4.0, 16.0)
_MAX_ROUNDS = 10
_SIGNED = ("word_penalty", "oov_penalty")


def tune(scores: Scores, num_errors_N: NDArray[np.int64], start: Weights, fixed: Collection[str] = ()) -> Weights:
    """Find weights with few errors; those named in `fixed` stay as they are. FIRST_BEST is what none of them beats."""
    trials = _Trials(scores, num_errors_N)
    free = free_weights(scores, start, fixed)
    starts = [start]
    if "lm_weight" in free:
        starts += [replace(start, lm_weight=value) for value in _STARTS]
    best = min((_descend(trials, weights, free) for weights in starts), key=trials.num_errors)
    return trials.plainest(min(start, best, key=trials.num_errors))


def free_weights(scores: Scores, start: Weights, fixed: Collection[str] = ()) -> list[str]:
    """List the weights that tuning may change and that can change anything, the weightiest first."""
    free = []
    # Without another score to measure it by, the new language model's weight is the one that stays.
    if start.rank_weight or (scores.nbest.has_am and start.am_weight):
        free.append("lm_weight")
    if OLD_LM in scores.by_name:
        free.append("old_lm_weight")
    free += [f"{OTHER}{name}" for name, own_N in scores.others.items() if own_N.any()]
    free.append("word_penalty")
    if scores.num_oov_N.any():
        free.append("oov_penalty")
    return [name for name in free if name not in fixed]


class _Trials:
    """All weights that were tried: how many errors each makes, and how many first hypotheses it changes."""

    def __init__(self, scores: Scores, num_errors_N: NDArray[np.int64]) -> None:
        self._scores = scores
        self._num_errors_N = num_errors_N
        self._found: dict[Weights, tuple[int, int]] = {}

    def num_errors(self, weights: Weights) -> int:
        """Count the errors, and keep the weights in mind."""
        if weights not in self._found:
            best_U = self._scores.best(weights)
            num_changed = int(np.count_nonzero(best_U != self._scores.begins))
            self._found[weights] = int(self._num_errors_N[best_U].sum()), num_changed
        return self._found[weights][0]

    def plainest(self, best: Weights) -> Weights:
        """Of what is within chance of `best`, find what changes the fewest hypotheses, by the smallest weights."""
        best_U = self._num_errors_N[self._scores.best(best)]

        def within_chance(weights: Weights) -> bool:
            more_U = self._num_errors_N[self._scores.best(weights)] - best_U
            # The standard error if either could win each utterance: a single utterance is never beyond it.
            return float(more_U.sum()) <= math.sqrt(float(np.square(more_U).sum()))

        def size(weights: Weights) -> tuple[int, float]:
            sizes = [*(weights.value(name) for name in NAMES), *dict(weights.scores).values()]
            return self._found[weights][1], sum(map(abs, sizes))

        trials = [FIRST_BEST, *sorted(self._found, key=size)]
        return next(weights for weights in trials if within_chance(weights))


def _descend(trials: _Trials, weights: Weights, free: list[str]) -> Weights:
    """Improve one weight after the other until none gets better."""
    fewest = trials.num_errors(weights)
    for _ in range(_MAX_ROUNDS):
        before = fewest
        for name in free:
            for number in range(1 + len(_FINE)):
                value = weights.value(name)
                grid = _grid(name, value, number)
                errors = [trials.num_errors(weights.changed({name: one})) for one in grid]
                # The whole range is searched for something better; near a good value its neighbours have a say, too.
                if min(errors) < fewest or (number > 0 and min(errors) == fewest):
                    fewest = min(errors)
                    weights = weights.changed({name: grid[_middle(errors)]})
        if fewest == before:
            break
    return weights


def _grid(name: str, value: float, number: int) -> list[float]:
    """Lay a grid, the first over all values and the others around the one that was found; it is in rising order."""
    if number == 0:
        values = [0.0, *_COARSE, *(-_COARSE if name in _SIGNED or name.startswith(OTHER) else [])]
    else:
        values = [value * factor for factor in _FINE[number - 1]]
    return sorted({float(one) for one in values})


def _middle(errors: list[int]) -> int:
    """Find the middle of the longest row of best places."""
    fewest = min(errors)
    rows = itertools.groupby(range(len(errors)), key=lambda place: errors[place] == fewest)
    longest = max((list(row) for is_best, row in rows if is_best), key=len)
    return longest[(len(longest) - 1) // 2]
