"""Which step is captured on a GPU, seen without one."""

from __future__ import annotations

import pytest
import torch
from small_corpus import random_ids, small_config, small_model

from bnce.corpus.resets import Resets
from bnce.corpus.streams import Chunk, Streams
from bnce.optimisers import build_optimiser
from bnce.training.step import NUM_EAGER_STEPS, TrainingStep

B, T = 8, 5


class PretendGpu(str):
    """Is called a GPU, and is where a CPU's tensors go."""

    type = "cuda"


def test_a_short_chunk_among_the_first_is_not_the_one_that_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured, it would never come again, and every whole chunk would run as it is."""
    captured: list[tuple[int, ...]] = []

    def capture(step: TrainingStep, chunk: Chunk) -> None:
        captured.append(tuple(chunk.target_TB.shape))

    monkeypatch.setattr(TrainingStep, "_run_on_side_stream", TrainingStep._run)
    monkeypatch.setattr(TrainingStep, "_capture", capture)
    model = small_model()
    optimiser = build_optimiser(model, small_config().optimiser)
    step = TrainingStep(model, optimiser, B, T, gradient="tokens", precision="float32")
    step.device = PretendGpu("cpu")  # type: ignore[assignment]
    # Whole chunks and a short one, which is the last of the eager steps.
    streams = Streams(random_ids(B * (T * (NUM_EAGER_STEPS - 1) + 3)), B, T, model.num_context)
    for index in range(NUM_EAGER_STEPS):
        step(streams.chunk(index), 1.0)
    assert captured == []
    step(streams.chunk(0), 1.0)
    assert captured == [(T, B)]


def test_a_replay_reads_the_resets_of_its_own_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph reads fixed places: what is not copied there stays that of the first chunk."""

    class PretendGraph:
        def __init__(self, step: TrainingStep, chunk: Chunk) -> None:
            self.step, self.chunk = step, chunk

        def replay(self) -> None:
            self.step._run(self.chunk)

    def capture(step: TrainingStep, chunk: Chunk) -> None:
        step._chunk, step._graph = chunk, PretendGraph(step, chunk)  # type: ignore[assignment]

    monkeypatch.setattr(TrainingStep, "_run_on_side_stream", TrainingStep._run)
    found = []
    for device in ("cpu", "pretend"):
        model = small_model()
        step = TrainingStep(
            model, build_optimiser(model, small_config().optimiser), B, T, gradient="tokens", precision="float32"
        )
        if device == "pretend":
            monkeypatch.setattr(TrainingStep, "_capture", capture)
            step.device = PretendGpu("cpu")  # type: ignore[assignment]
        streams = Streams(random_ids(B * T * 8), B, T, model.num_context)
        resets = Resets(streams, 0.5, seed=1)
        for index in range(8):
            step(resets.choose(streams.chunk(index), index, epoch=0), 1.0)
        assert (step._graph is not None) == (device == "pretend")
        found.append(model.embedding.detach().clone())
    assert torch.equal(*found)
