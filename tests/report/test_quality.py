"""Time to quality, read off validation curves."""

from __future__ import annotations

import pytest

from bnce.report.quality import MARGIN, seconds_to_reach, target_perplexity

CURVE = [(10.0, 400.0), (20.0, 100.0), (30.0, 120.0), (40.0, 50.0), (50.0, 55.0)]


def test_between_evaluations_log_perplexity_is_a_line() -> None:
    assert seconds_to_reach(CURVE, 200.0) == pytest.approx(15.0)
    assert seconds_to_reach(CURVE, 100.0) == pytest.approx(20.0)


def test_at_the_first_evaluation_and_never() -> None:
    assert seconds_to_reach(CURVE, 500.0) == 10.0
    assert seconds_to_reach(CURVE, 49.9) is None
    assert seconds_to_reach([], 100.0) is None


def test_target_is_the_softmaxs_best_and_a_margin() -> None:
    assert target_perplexity(CURVE) == pytest.approx(MARGIN * 50.0)
    assert target_perplexity([]) is None
