"""Runs that end when their time is used, and runs of a part of an epoch."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_corpus import Watcher, small_config, small_corpus

from bnce import Corpus
from bnce.config import change_settings
from bnce.machine.world import World
from bnce.optimisers.schedule import Schedule
from bnce.runs.directory import RunDirectory
from bnce.runs.metrics import read_metrics
from bnce.training import budget
from bnce.training.budget import Budget
from bnce.training.plan import create_run
from bnce.training.run import run_training
from bnce.training.step import TrainingStep

CPU = torch.device("cpu")
STEPS_AN_EPOCH = 50


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return small_corpus(tmp_path / "corpus")


@pytest.fixture
def factors(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let every look at the clock find a second gone, and remember the factors on the rates."""
    seconds = itertools.count()
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    found: list[float] = []
    plain = TrainingStep.__call__

    def step(self: TrainingStep, chunk: Any, factor: float, *rest: Any) -> None:
        found.append(factor)
        plain(self, chunk, factor, *rest)

    monkeypatch.setattr(TrainingStep, "__call__", step)
    return found


def test_a_run_ends_when_its_budget_is_used(tmp_path: Path, corpus: Corpus, factors: list[float]) -> None:
    watcher = Watcher()
    run = create_run(tmp_path / "run", small_config(corpus, training={"budget": "80 s", "epochs": 1}), corpus)
    summary = run_training(run, corpus, CPU, watcher)
    # One second for each step, and one for each of the looks at the start and after the first epoch's evaluation.
    assert (summary["status"], summary["step"]) == ("finished", 78)
    assert summary["epochs"] == pytest.approx(78 / STEPS_AN_EPOCH)
    assert [record["step"] for record in read_metrics(run.path).records] == [50, 78], "the end is evaluated"
    assert factors == sorted(factors, reverse=True)
    assert factors[0] == 1.0
    assert factors[39] == pytest.approx(0.5, abs=0.03), "half of the time, half of the rate"
    assert Schedule.FLOOR <= factors[-1] < 0.03, "the schedule ends with the budget"
    (told,) = [sentence for sentence in watcher.sentences if "training.budget" in sentence]
    assert told.startswith("At this speed, training.budget=80 s is enough for about")


def test_a_resumed_run_has_what_is_left_of_its_budget(tmp_path: Path, corpus: Corpus, factors: list[float]) -> None:
    run = create_run(tmp_path / "run", small_config(corpus, training={"budget": "30 s"}), corpus)
    calls = itertools.count(1)
    summary = run_training(run, corpus, CPU, Watcher(), should_stop=lambda: next(calls) == 10)
    assert (summary["status"], summary["step"]) == ("stopped", 10)
    summary = run_training(RunDirectory.open(run.path), corpus, CPU, Watcher(), resume=True)
    assert (summary["status"], summary["step"]) == ("finished", 28)
    assert factors[10] == pytest.approx(1 - 12 / 30, abs=0.05)
    assert Schedule.FLOOR <= factors[-1] < 0.06
    # A larger one goes on with a run that is finished.
    longer = dataclasses.replace(run, config=change_settings(run.config, ["training.budget=1 min"]))
    summary = run_training(longer, corpus, CPU, Watcher(), resume=True)
    assert (summary["status"], summary["changes"][0]["setting"]) == ("finished", "training.budget")
    assert 50 < summary["step"] < 60


def test_time_is_counted_by_the_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    other = World()
    monkeypatch.setattr(other, "share", lambda value: 7.0)
    counted = Budget(10.0, other)
    counted.start(0.0)
    counted.use()
    assert counted.used_seconds == 7.0
    assert counted.total_steps(70, unmeasured=5) == 100
    assert Budget(10.0, other).total_steps(0, unmeasured=5) == 5


def test_a_part_of_an_epoch_ends_with_an_evaluation_and_the_floor(
    tmp_path: Path, corpus: Corpus, factors: list[float]
) -> None:
    run = create_run(tmp_path / "run", small_config(corpus, training={"epochs": 1.5}), corpus)
    summary = run_training(run, corpus, CPU, Watcher())
    assert (summary["status"], summary["step"], summary["epochs"]) == ("finished", 75, 1.5)
    assert [record["step"] for record in read_metrics(run.path).records] == [50, 75]
    assert factors[-1] == pytest.approx(1 / 75)
