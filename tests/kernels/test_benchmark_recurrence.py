"""The benchmark of the recurrent kernels changes their text; this needs no GPU to be checked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from bnce.kernels.hopper.persistent import make_plan

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # as the script runs: beside its parts
try:
    import recurrence as benchmark
finally:
    sys.path.pop(0)


def text(name: str) -> str:
    return make_plan(name, 640, 400, 132).source(has_resets=False)


@pytest.mark.parametrize("part", benchmark.LEFT_OUT)
def test_every_part_can_be_left_out(part: str) -> None:
    changed = benchmark.leave_out(text("lstm_forward"), part)
    for old, _ in benchmark.LEFT_OUT[part]:
        assert old in text("lstm_forward") or old in text("rnn_forward"), "what is replaced must be there"
    assert changed != text("lstm_forward")


@pytest.mark.parametrize(("name", "absent"), [("lstm_forward", set()), ("rnn_forward", {"sums added up"})])
def test_the_clock_is_read_at_every_stage_of_both_directions(name: str, absent: set[str]) -> None:
    changed = benchmark.read_clock(text(name))
    for number, stage in enumerate(benchmark.STAGES):
        num_stamps = changed.count(f"* 8 + {number}] = clock64()")
        assert num_stamps == (0 if stage in absent else 1 if stage == "sums added up" else 2), stage


def test_cycles_are_those_since_the_stage_before() -> None:
    stamps = torch.zeros(2, 64, 8, dtype=torch.float64)
    for t in range(20):
        for number in (0, 1, 2, 4, 5, 6):
            stamps[:, t, number] = 1000 * t + 100 * number
            stamps[1, t, number] += 12345  # every multiprocessor has its own clock
    assert list(benchmark.between(stamps, range(20)).values()) == [400, 100, 100, 200, 100, 100]
