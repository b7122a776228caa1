"""Timing: what is timed, in which order, and how the figures follow from the seconds."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_corpus import small_config

from bnce.losses import softmax_forms
from bnce.measure import bench as bench_module
from bnce.measure.bench import bench
from bnce.training.step import TrainingStep

CPU = torch.device("cpu")


class FakeClock:
    """A clock on which a step takes as long as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, list[float]]) -> None:
        """`seconds` are those of a step of each loss, round by round; the first is the one to settle in."""
        self.now = 0.0
        self.rounds: list[str] = []
        monkeypatch.setattr(bench_module, "time", SimpleNamespace(perf_counter=lambda: self.now))
        plain = bench_module._Runner.run

        def run(runner: Any, round_seconds: float) -> float:
            loss = runner.config.loss.name
            self.current = seconds[loss][self.rounds.count(loss)]
            self.rounds.append(loss)
            return plain(runner, round_seconds)

        call = TrainingStep.__call__

        def step(*arguments: Any) -> None:
            self.now += self.current
            call(*arguments)

        monkeypatch.setattr(bench_module._Runner, "run", run)
        monkeypatch.setattr(TrainingStep, "__call__", step)


def test_medians_of_rounds_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"softmax": [9.0, 4.0, 2.0, 4.5], "bnce": [9.0, 1.0, 0.5, 2.0]}
    clock = FakeClock(monkeypatch, seconds)
    told: list[tuple[int, int]] = []
    configs = [(small_config(loss={"name": loss}), 50) for loss in seconds]
    result = bench(configs, CPU, num_rounds=3, round_seconds=8.0, progress=lambda *at: told.append(at))
    assert clock.rounds == ["softmax", "bnce"] * 4
    assert told == [(number, 6) for number in range(1, 7)]
    softmax, bnce = result["measurements"]
    assert softmax["step_seconds"] == pytest.approx(4.0)
    assert softmax["words_per_second"] == pytest.approx(8 * 5 / 4.0)
    assert softmax["spread"] == pytest.approx((4.5 - 2.0) / 2 / 4.0)
    assert bnce["step_seconds"] == pytest.approx(1.0)
    assert (softmax["speedup_over_softmax"], bnce["speedup_over_softmax"]) == (1.0, pytest.approx(4.0))
    assert (result["num_rounds"], result["round_seconds"], result["torch"]) == (3, 8.0, torch.__version__)


def test_a_speedup_compares_like_with_like() -> None:
    def measured(loss: str, words_per_second: float, **changes: Any) -> bench_module.Measurement:
        item = bench_module.Measurement("lstm", loss, 0, 50, 8, 5, words_per_second, 0.0, 1.0, None, 1.0)
        return dataclasses.replace(item, **changes)

    items = [
        measured("softmax", 10.0),
        measured("bnce", 30.0),
        measured("bnce", 90.0, vocab_size=51),
        measured("bnce", 90.0, model="rnn"),
        measured("bnce", 90.0, batch_size=9),
        measured("bnce", 90.0, num_steps=6),
        measured("softmax", 45.0, vocab_size=51),
    ]
    speedups = [item.speedup_over_softmax for item in bench_module._compare(items)]
    assert speedups == [1.0, 3.0, 2.0, None, None, None, 1.0]


@pytest.mark.parametrize("model", ["ffnn", "lstm"])
def test_a_timed_step_is_a_whole_training_step(model: str) -> None:
    runner = bench_module._Runner(small_config(model={"name": model}), 50, CPU)
    before = {name: tensor.clone() for name, tensor in runner.model.state_dict().items()}
    state = [part.clone() for part in runner.step.state]
    assert runner.run(0.0) > 0
    after = runner.model.state_dict()
    assert all(not torch.equal(after[name], before[name]) for name in before if name != "output.log_z")
    if model == "lstm":
        assert not torch.equal(runner.step.state[0], state[0])


def test_chunks_never_end() -> None:
    runner = bench_module._Runner(small_config(), 50, CPU)
    first = next(runner.chunks)
    others = [next(runner.chunks) for _ in range(bench_module.NUM_CHUNKS)]
    assert torch.equal(others[-1].target_TB, first.target_TB)
    assert not torch.equal(others[0].target_TB, first.target_TB)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give a list that notes which forms of the softmax are computed."""
    names: list[str] = []
    for name in ("plain", "fused"):
        form = softmax_forms.FORMS[name]

        def watched(*arguments: Any, name: str = name, form: Any = form) -> torch.Tensor:
            names.append(name)
            return form(*arguments)

        monkeypatch.setitem(softmax_forms.FORMS, name, watched)
    return names


def test_the_softmax_that_is_timed_is_the_one_that_was_named(called: list[str]) -> None:
    config = small_config(loss={"name": "softmax", "softmax": "plain"})
    (measured,) = bench([(config, 50)], CPU, num_rounds=1, round_seconds=0.0)["measurements"]
    assert measured["softmax"] == "plain"
    assert set(called) == {"plain"}


def test_auto_times_the_fastest_softmax(called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax_forms, "fastest", lambda *arguments, **options: ("plain", {"plain": 1.0}))
    config = small_config(loss={"name": "softmax", "softmax": "auto"})
    (measured,) = bench([(config, 50)], CPU, num_rounds=1, round_seconds=0.0)["measurements"]
    assert measured["softmax"] == "plain"
    assert set(called) == {"plain"}
