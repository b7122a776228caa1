"""Which step is captured on a GPU, seen without one."""

from __future__ import annotations

import pytest
from small_corpus import random_ids, small_config, small_model

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
