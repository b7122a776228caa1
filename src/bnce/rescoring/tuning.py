"""Weights that make the fewest word errors on lists with references: one weight at a time, over a grid, deterministic.

Only ratios between weights decide, so one stays as it is: the acoustic weight, or the new language model's where there
are no acoustic scores. From several starts, each other weight in turn takes the best of a grid of values, then of finer
grids around it. Among equally good neighbours on a grid the middle one is taken: it is the least a matter of luck.

Legend: U utterances, N hypotheses of all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bnce.rescoring.rescore import Scores
from bnce.scoring.weights import Weights

# Doublings: acoustic scores may come at any scale, so that a language model's weight may be 0.02 or 30.
_COARSE = 2.0 ** np.arange(-8, 8)
_FINE = (2.0 ** (np.arange(-8, 9) / 8), 2.0 ** (np.arange(-8, 9) / 64))
_STARTS = (0.25, 1.0, 4.0, 16.0)
_MAX_ROUNDS = 10
_SIGNED = ("word_penalty", "oov_penalty")


def tune(scores: Scores, num_errors_N: NDArray[np.int64], start: Weights, fixed: Collection[str] = ()) -> Weights:
    """Find weights with few errors, never more than `start` has; those named in `fixed` stay as they are."""
    free = _free(scores, fixed)
    starts = [start]
    if "lm_weight" in free:
        starts += [replace(start, lm_weight=value) for value in _STARTS]
    best, fewest = start, _num_errors(scores, num_errors_N, start)
    for weights in starts:
        found = _descend(scores, num_errors_N, weights, free)
        num_errors = _num_errors(scores, num_errors_N, found)
        if num_errors < fewest:
            best, fewest = found, num_errors
    return best


def _free(scores: Scores, fixed: Collection[str]) -> list[str]:
    """List the weights that can change anything, the weightiest first."""
    free = ["lm_weight"]
    if scores.nbest.has_old_lm:
        free.append("old_lm_weight")
    free.append("word_penalty")
    if scores.num_oov_N.any():
        free.append("oov_penalty")
    if not scores.nbest.has_am:
        free.remove("lm_weight")
    return [name for name in free if name not in fixed]


def _descend(scores: Scores, num_errors_N: NDArray[np.int64], weights: Weights, free: list[str]) -> Weights:
    """Improve one weight after the other until none gets better."""
    fewest = _num_errors(scores, num_errors_N, weights)
    for _ in range(_MAX_ROUNDS):
        before = fewest
        for name in free:
            for number in range(1 + len(_FINE)):
                value = getattr(weights, name)
                grid = _grid(name, value, number)
                errors = [_num_errors(scores, num_errors_N, replace(weights, **{name: one})) for one in grid]
                # The whole range is searched for something better; near a good value its neighbours have a say, too.
                if min(errors) < fewest or (number > 0 and min(errors) == fewest):
                    fewest = min(errors)
                    weights = replace(weights, **{name: grid[_middle(errors)]})
        if fewest == before:
            break
    return weights


def _grid(name: str, value: float, number: int) -> list[float]:
    """Lay a grid, the first over all values and the others around the one that was found; it is in rising order."""
    if number == 0:
        values = [0.0, *_COARSE, *(-_COARSE if name in _SIGNED else [])]
    else:
        values = [value * factor for factor in _FINE[number - 1]]
    return sorted({float(one) for one in values})


def _middle(errors: list[int]) -> int:
    """Find the middle of the longest row of best places."""
    rows: list[list[int]] = [[]]
    for place, num_errors in enumerate(errors):
        if num_errors == min(errors):
            rows[-1].append(place)
        elif rows[-1]:
            rows.append([])
    longest = max(rows, key=len)
    return longest[(len(longest) - 1) // 2]


def _num_errors(scores: Scores, num_errors_N: NDArray[np.int64], weights: Weights) -> int:
    return int(num_errors_N[scores.best(weights)].sum())
