"""Expected errors: as the equation has them, and what large and small scales choose."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bnce.rescoring.nbest import NBest, Utterance
from bnce.rescoring.rescore import Scores
from bnce.rescoring.risk import expected_errors, find_distances, first_least
from bnce.rescoring.tuning import MBR_SCALES, tune_mbr
from bnce.scoring.weights import Weights

pytest.importorskip("rapidfuzz")

TEXTS = [["a b c", "a x c", "a b d", "", "a b c"], ["w"], ["u v", "v u"]]
BEGINS = np.array([0, 5, 6])


def word_distance(one: list[str], other: list[str]) -> int:
    """The textbook's table."""
    row = list(range(len(other) + 1))
    for number, word in enumerate(one, 1):
        before, row[0] = row[0], number
        for place, found in enumerate(other, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != found))
    return row[-1]


def test_expected_errors_by_the_equation() -> None:
    totals = [[-1.0, -0.5, -2.0, 3.0, -1.5], [7.0], [0.0, 0.1]]
    for scale in (0.0, 0.5, 4.0, 1000.0):
        found = expected_errors(np.concatenate(totals), BEGINS, find_distances(TEXTS), scale)
        expected = []
        for own, texts in zip(totals, TEXTS, strict=True):
            weights = [math.exp(scale * (total - max(own))) for total in own]
            for text in texts:
                distances = [word_distance(text.split(), other.split()) for other in texts]
                expected.append(sum(w * d for w, d in zip(weights, distances, strict=True)) / sum(weights))
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_first_of_equals() -> None:
    assert first_least(np.array([2.0, 1.0, 1.0, 5.0, 3.0, 0.0, 0.0]), np.array([0, 3, 5])).tolist() == [1, 4, 5]


def listed() -> tuple[Scores, np.ndarray]:
    """Make lists whose highest total stands alone, while two near ones agree and are right."""
    texts = ["a b z y x", "a b c d e", "a b c d f"]
    lists = NBest([Utterance(str(number), texts) for number in range(30)], ("am",))
    none = np.zeros(90)
    return Scores(lists, np.tile([0.0, -0.2, -0.3], 30), none, none, none, none), np.tile([3, 0, 1], 30)


def test_the_middle_of_a_list_is_chosen() -> None:
    scores, errors_N = listed()
    plain = Weights(lm_weight=0)
    assert (scores.best(plain) - scores.begins).tolist() == [0] * 30
    assert (scores.best(Weights(lm_weight=0, mbr_scale=1.0)) - scores.begins).tolist() == [1] * 30
    assert (scores.best(Weights(lm_weight=0, mbr_scale=100.0)) - scores.begins).tolist() == [0] * 30
    rows = list(scores.rows(Weights(lm_weight=0, mbr_scale=1.0)))
    assert [row["place"] for row in rows[:3]] == [2, 3, 1]
    tuned = tune_mbr(scores, errors_N, plain)
    assert tuned.mbr_scale in MBR_SCALES
    assert errors_N[scores.best(tuned)].sum() == 0
    # Where the highest total is right, it stays.
    assert tune_mbr(scores, np.tile([0, 3, 3], 30), plain) == plain
