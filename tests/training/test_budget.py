"""Runs that end when their time is used, and runs of a part of an epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from run_files import metrics_of, summary_of
from small_training import resume_small, train_small

from bnce import Corpus

STEPS_AN_EPOCH = 50
FLOOR = 0.003  # the last steps of a decay still move


@pytest.fixture
def _a_second_for_every_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a step take a second by the clock, and nothing else any time."""
    seconds, plain = [0.0], torch.Tensor.backward

    def backward(*arguments: Any, **keywords: Any) -> None:
        plain(*arguments, **keywords)
        seconds[0] += 1.0

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "backward", backward)
        patched.setattr(time, "monotonic", lambda: seconds[0])
        yield


@pytest.mark.usefixtures("_a_second_for_every_step")
def test_a_run_ends_when_its_budget_is_used(tmp_path: Path, corpus: Corpus) -> None:
    run = tmp_path / "run"
    training = {"budget_seconds": 80, "epochs": 1, "evaluations_per_epoch": 5}
    summary = train_small(run, corpus, training=training)
    assert (summary["status"], summary["step"]) == ("finished", 80)
    assert summary["epochs"] == pytest.approx(80 / STEPS_AN_EPOCH)
    records = metrics_of(run)
    assert [record["step"] for record in records] == [*range(10, 81, 10)], "the end is evaluated"
    factors = [record["lr"] / 0.1 for record in records]
    assert factors == sorted(factors, reverse=True)
    assert factors[3] == pytest.approx(0.5, abs=0.03), "half of the time, half of the rate"
    assert FLOOR <= factors[-1] < 0.03, "the schedule ends with the budget"


@pytest.mark.usefixtures("_a_second_for_every_step")
def test_a_resumed_run_has_what_is_left_of_its_budget(tmp_path: Path, corpus: Corpus) -> None:
    run = tmp_path / "run"
    train_small(run, corpus, training={"budget_seconds": 30, "evaluations_per_epoch": 50}, stop_after=10)
    assert summary_of(run)["step"] == 10
    summary = resume_small(run)
    assert (summary["status"], summary["step"]) == ("finished", 30)
    factors = [record["lr"] / 0.1 for record in metrics_of(run)]
    assert factors[10] == pytest.approx(1 - 11 / 30, abs=0.05)
    assert FLOOR <= factors[-1] < 0.06
    # A larger one goes on with a run that is finished.
    summary = resume_small(run, training={"budget_seconds": 60})
    assert (summary["status"], summary["changes"][0]["setting"]) == ("finished", "training.budget_seconds")
    assert summary["step"] == 60


def test_a_part_of_an_epoch_ends_with_an_evaluation_and_the_floor(tmp_path: Path, corpus: Corpus) -> None:
    summary = train_small(tmp_path / "run", corpus, training={"epochs": 1.5})
    assert (summary["status"], summary["step"], summary["epochs"]) == ("finished", 75, 1.5)
    records = metrics_of(tmp_path / "run")
    assert [record["step"] for record in records] == [50, 75]
    assert records[-1]["lr"] == pytest.approx(0.1 / 75)
