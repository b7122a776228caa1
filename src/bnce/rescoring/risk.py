"""The hypothesis with the fewest expected errors (minimum Bayes risk), in place of the one with the highest total.

Each hypothesis of an utterance is taken to be what was said with the probability softmax(scale · total). The expected
errors of a hypothesis are the sum over all others of probability · word edit distance. A large scale trusts the highest
total; a small one looks for the middle of the list.

Legend: U utterances, N hypotheses of all of them, P pairs of hypotheses of one utterance that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.machine.packages import missing
from bnce.scoring.scored import Floats

_FIRST_LETTER = 0x10000  # beyond the surrogates, and there are a million letters


class Distances(NamedTuple):
    """Word edit distances between the hypotheses of each utterance, where they are not 0."""

    one_P: NDArray[np.int64]  # the places among all of the two hypotheses
    other_P: NDArray[np.int64]
    distance_P: Floats


def find_distances(lists: Iterable[Sequence[str]]) -> Distances:
    """Compute all distances within each utterance."""
    cdist, levenshtein = _rapidfuzz()
    ones, others, distances = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
    begin = 0
    for texts in lists:
        letters: dict[str, str] = {}
        # Words as letters: rapidfuzz is fastest with strings.
        spelt = [
            "".join(letters.setdefault(word, chr(_FIRST_LETTER + len(letters))) for word in text.split())
            for text in texts
        ]
        distance_HH = cdist(spelt, spelt, scorer=levenshtein, dtype=np.int32, workers=1)
        one, other = np.nonzero(distance_HH)
        ones.append(begin + one)
        others.append(begin + other)
        distances.append(distance_HH[one, other].astype(np.float64))
        begin += len(texts)
    return Distances(np.concatenate(ones), np.concatenate(others), np.concatenate(distances))


def expected_errors(total_N: Floats, begins: NDArray[np.int64], distances: Distances, scale: float) -> Floats:
    """Compute the expected errors of every hypothesis (N,)."""
    length_U = np.diff(begins, append=len(total_N))
    highest_N = np.repeat(np.maximum.reduceat(total_N, begins), length_U)
    weight_N = np.exp(scale * (total_N - highest_N))
    probability_N = weight_N / np.repeat(np.add.reduceat(weight_N, begins), length_U)
    risk_P = probability_N[distances.other_P] * distances.distance_P
    risk_N: Floats = np.bincount(distances.one_P, weights=risk_P, minlength=len(total_N)).astype(np.float64)
    return risk_N


def first_least(value_N: Floats, begins: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find the place of each utterance's least value (U,), the first of equals."""
    length_U = np.diff(begins, append=len(value_N))
    least_U = np.minimum.reduceat(value_N, begins)
    (place_N,) = np.nonzero(value_N == np.repeat(least_U, length_U))
    place_U: NDArray[np.int64] = place_N[np.searchsorted(place_N, begins)]
    return place_U


def _rapidfuzz() -> tuple[Any, Any]:
    try:
        from rapidfuzz.distance import Levenshtein
        from rapidfuzz.process import cdist
    except ModuleNotFoundError as error:
        raise missing("rapidfuzz", "Choosing by expected errors") from error
    return cdist, Levenshtein.distance
