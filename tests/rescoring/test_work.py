"""The work of rescoring: counted, and the first hypotheses stay where they are kept, whatever else is asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bnce.rescoring.cache import ScoreCache
from bnce.rescoring.work import Scorer, Tuner
from bnce.scoring.weights import FIRST_BEST, Weights

from .test_rescore import LISTS, make_model
from .test_risk import listed

pytest.importorskip("rapidfuzz")


def test_what_was_scored_is_counted(tmp_path: Path) -> None:
    begun: list[int] = []
    with ScoreCache(tmp_path / "c.db", "m") as cache:
        scorer = Scorer(make_model(), cache=cache, begin=begun.append)
        first = scorer.score(LISTS, None)
        assert (scorer.num_scored, scorer.num_cached, begun) == (7, 0, [7])
        again = scorer.score(LISTS, None)
        assert (scorer.num_scored, scorer.num_cached, begun) == (7, 7, [7, 7])
    np.testing.assert_array_equal(first.lm_N, again.lm_N)
    assert scorer.seconds > 0


def test_context_depends_on_weights_only_where_they_choose_it() -> None:
    assert Scorer(make_model(), carry_from="best").by_weights
    assert not Scorer(make_model(), carry_from="first").by_weights
    last_by_rank = Weights(0, 0, 0, rank_weight=-1)
    first = Scorer(make_model(), carry_from="first").score(LISTS, last_by_rank)
    best = Scorer(make_model(), carry_from="best").score(LISTS, last_by_rank)
    assert first.lm_N[4] != best.lm_N[4]


@pytest.mark.parametrize("scale", [None, 0.5])
def test_the_first_hypotheses_stay_where_nothing_beats_them(scale: float | None) -> None:
    """A scale that was given, or comes from a file, must not choose between hypotheses that have no weights."""
    scores, _ = listed()
    right_N = np.tile([0, 3, 3], 30)
    for start in (Weights(lm_weight=0), Weights(lm_weight=0, mbr_scale=1.0)):
        tuner = Tuner(start, mbr=True, mbr_scale=scale)
        assert tuner.find(scores, right_N) == FIRST_BEST
        assert tuner.describe(scores, FIRST_BEST)["kept_first_best"] is True


@pytest.mark.parametrize("scale", [None, 0.5])
def test_expected_errors_are_used_where_they_gain(scale: float | None) -> None:
    scores, errors_N = listed()
    # No weights beat the first hypotheses here: only their nearness to others tells.
    assert Tuner(Weights(lm_weight=0)).find(scores, errors_N) == FIRST_BEST
    found = Tuner(Weights(lm_weight=0), mbr=True, mbr_scale=scale).find(scores, errors_N)
    assert found.mbr_scale == scale if scale is not None else found.mbr_scale > 0
    assert errors_N[scores.best(found)].sum() == 0
