"""Schedules warm up, fall or halve, and their state comes back."""

from __future__ import annotations

import pytest

from bnce.config import SCHEDULE_NAMES, OptimiserConfig
from bnce.optimisers.schedule import DECAYS, Schedule


def test_halve_after_patience_epochs_without_a_better_one() -> None:
    schedule = Schedule(OptimiserConfig(schedule="halve", patience=2), total_steps=10)
    factors = []
    for perplexity in (100, 90, 95, 90, 80, 81, 82, 83, 84, 79):
        schedule.end_epoch(perplexity)
        factors.append(schedule.factor(0))
    # 95, 90 (no better than 90): halved; 81, 82: halved; 83, 84: halved.
    assert factors == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]


def test_the_paper_waits_seven_epochs() -> None:
    schedule = Schedule(OptimiserConfig(), total_steps=10)
    factors = [schedule.end_epoch(100) or schedule.factor(0) for _ in range(9)]
    assert factors == [1, 1, 1, 1, 1, 1, 1, 0.5, 0.5]


def test_linear_falls_from_one_to_the_floor() -> None:
    schedule = Schedule(OptimiserConfig(schedule="linear"), total_steps=1000)
    assert schedule.factor(0) == 1.0
    assert schedule.factor(250) == pytest.approx(0.75)
    assert schedule.factor(998) == Schedule.FLOOR
    assert schedule.factor(999) == Schedule.FLOOR
    schedule.end_epoch(1.0)
    schedule.end_epoch(2.0)
    assert schedule.factor(250) == pytest.approx(0.75), "perplexities do not matter to it"


def test_cosine_falls_slowly_at_both_ends() -> None:
    schedule = Schedule(OptimiserConfig(schedule="cosine"), total_steps=1000)
    assert schedule.factor(0) == pytest.approx(1.0)
    assert schedule.factor(500) == pytest.approx(0.5)
    assert schedule.factor(100) > 0.9 + 0.05
    assert schedule.factor(900) < 0.1 - 0.05
    assert schedule.factor(999) == Schedule.FLOOR


def test_linear_warms_up() -> None:
    schedule = Schedule(OptimiserConfig(schedule="linear", warmup_steps=4), total_steps=100)
    found = [schedule.factor(step) for step in range(6)]
    assert found == pytest.approx([0.25 * 1.0, 0.5 * 0.99, 0.75 * 0.98, 0.97, 0.96, 0.95])


def test_a_short_run_warms_up_for_its_first_half() -> None:
    """A recipe's warm-up is longer than the whole run: the rates must still come to something."""
    schedule = Schedule(OptimiserConfig(schedule="linear", warmup_steps=500), total_steps=10)
    found = [schedule.factor(step) for step in range(10)]
    assert found == pytest.approx([0.2, 0.36, 0.48, 0.56, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert Schedule(OptimiserConfig(schedule="linear", warmup_steps=500), total_steps=1).factor(0) == 1.0


def test_schedule_state_comes_back() -> None:
    config = OptimiserConfig(schedule="halve", patience=3)
    schedule, resumed = Schedule(config, 10), Schedule(config, 10)
    for perplexity in (5, 6, 7, 8, 9):
        schedule.end_epoch(perplexity)
    resumed.load_state(schedule.state())
    for perplexity in (6, 6, 4, 5, 5, 5):
        schedule.end_epoch(perplexity)
        resumed.end_epoch(perplexity)
        assert (resumed.factor(0), resumed.state()) == (schedule.factor(0), schedule.state())
    assert schedule.factor(0) == 0.125


def test_every_name_has_its_schedule() -> None:
    """One that nobody wrote used to fall like `linear`."""
    assert set(SCHEDULE_NAMES) == {"halve", *DECAYS}
