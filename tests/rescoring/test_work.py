"""The work of rescoring is counted."""

from __future__ import annotations

from bnce.rescoring.work import Scorer
from bnce.scoring.weights import Weights

from .test_rescore import LISTS, make_model


def test_what_was_scored_is_counted() -> None:
    begun: list[int] = []
    scorer = Scorer(make_model(), begin=begun.append)
    scorer.score(LISTS, None)
    assert (scorer.num_scored, begun) == (7, [7])
    assert scorer.seconds > 0


def test_context_depends_on_weights_only_where_they_choose_it() -> None:
    assert Scorer(make_model(), carry_from="best").by_weights
    assert not Scorer(make_model(), carry_from="first").by_weights
    last_by_rank = Weights(0, 0, 0, rank_weight=-1)
    first = Scorer(make_model(), carry_from="first").score(LISTS, last_by_rank)
    best = Scorer(make_model(), carry_from="best").score(LISTS, last_by_rank)
    assert first.lm_N[4] != best.lm_N[4]
