"""The hypothesis with the fewest expected errors (minimum Bayes risk), in place of the one with the highest total.

Each hypothesis of an utterance is taken to be what was said with the probability softmax(scale · total). The expected
errors of a hypothesis are the sum over all others of probability · word edit distance. A large scale trusts the highest
total; a small one looks for the middle of the list.

Legend: U utterances, N hypotheses of all of them, H hypotheses of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from bnce.machine.packages import need
from bnce.scoring.scored import Floats

_FIRST_LETTER = 0x10000  # beyond the surrogates, and there are a million letters


def find_distances(lists: Iterable[Sequence[str]]) -> list[NDArray[np.int32]]:
    """Compute the word edit distances between the hypotheses of each utterance (H, H)."""
    process, distance = (need(f"rapidfuzz.{part}", "Choosing by expected errors") for part in ("process", "distance"))
    found = []
    for texts in lists:
        letters: dict[str, str] = {}
        # Words as letters: rapidfuzz is fastest with strings.
        spelt = [
            "".join(letters.setdefault(word, chr(_FIRST_LETTER + len(letters))) for word in text.split())
            for text in texts
        ]
        found.append(process.cdist(spelt, spelt, scorer=distance.Levenshtein.distance, dtype=np.int32, workers=1))
    return found


def expected_errors(
    total_N: Floats, begins: NDArray[np.int64], distances: Sequence[NDArray[np.int32]], scale: float
) -> Floats:
    """Compute the expected errors of every hypothesis (N,)."""
    risk_N = np.empty_like(total_N)
    for begin, distance_HH in zip(begins.tolist(), distances, strict=True):
        own = slice(begin, begin + len(distance_HH))
        weight_H = np.exp(scale * (total_N[own] - total_N[own].max()))
        # Row by row, so that equal hypotheses have equal risks, to the bit.
        risk_N[own] = (distance_HH * (weight_H / weight_H.sum())).sum(axis=1)
    return risk_N


def first_least(value_N: Floats, begins: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find the place of each utterance's least value (U,), the first of equals."""
    length_U = np.diff(begins, append=len(value_N))
    least_U = np.minimum.reduceat(value_N, begins)
    (place_N,) = np.nonzero(value_N == np.repeat(least_U, length_U))
    return place_N[np.searchsorted(place_N, begins)]
