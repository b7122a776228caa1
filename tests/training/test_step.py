"""Which step is captured on a GPU, seen without one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from small_corpus import random_ids, small_config, small_model

from bnce.corpus.streams import Resets, Streams
from bnce.machine.processes import World
from bnce.training.step import NUM_EAGER_STEPS, TrainingStep

B, T = 8, 5


class PretendGpu(str):
    """Is called a GPU, and is where a CPU's tensors go."""

    type = "cuda"


class PretendStream:
    """Runs work at once, and captures it by keeping it."""

    def __init__(self) -> None:
        self.num_captured = 0

    def run(self, work: Callable[[], None]) -> None:
        work()

    def capture(self, work: Callable[[], None]) -> PretendStream:
        self.num_captured, self.replay = self.num_captured + 1, work
        return self


def make_step(monkeypatch: pytest.MonkeyPatch, *, on_gpu: bool) -> TrainingStep:
    """Make a step, on a GPU that is none."""
    step = TrainingStep(small_model(), small_config(training={"precision": "float32"}), World(), torch.device("cpu"))
    if on_gpu:
        monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "manual_seed", lambda _: None)
        step.device, step._side = PretendGpu("cpu"), PretendStream()  # type: ignore[assignment]
    return step


def test_a_short_chunk_among_the_first_is_not_the_one_that_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured, it would never come again, and every whole chunk would run as it is."""
    step = make_step(monkeypatch, on_gpu=True)
    # Whole chunks and a short one, which is the last of the eager steps.
    streams = Streams(random_ids(B * (T * (NUM_EAGER_STEPS - 1) + 3)), B, T, step.model.num_context)
    for index in range(NUM_EAGER_STEPS):
        step(streams.chunk(index), 1.0, index)
    assert step._graph is None
    step(streams.chunk(0), 1.0, NUM_EAGER_STEPS)
    assert step._graph is not None
    assert step._chunk is not None
    assert step._chunk.target_TB.shape == (T, B)


def test_a_replay_reads_the_resets_of_its_own_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph reads fixed places: what is not copied there stays that of the first chunk."""
    found = []
    for on_gpu in (False, True):
        step = make_step(monkeypatch, on_gpu=on_gpu)
        streams = Streams(random_ids(B * T * 8), B, T, step.model.num_context)
        resets = Resets(streams, 0.5, seed=1)
        for index in range(8):
            step(resets.choose(streams.chunk(index), index, epoch=0), 1.0, index)
        assert (step._graph is not None) == on_gpu
        found.append(step.model.embedding.detach().clone())
    assert torch.equal(*found)
