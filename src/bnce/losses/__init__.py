"""The losses by name: each sums over the positions of a batch. A new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from bnce.errors import unknown_name
from bnce.losses import batch_nce as of_batch
from bnce.losses import chunk_nce as of_chunk
from bnce.losses.output_batch import OutputBatch
from bnce.losses.sampled_nce import nce, shared_nce
from bnce.losses.softmax_forms import softmax

__all__ = ["LOSSES", "Loss", "OutputBatch", "get_loss", "trained_positions"]

Loss = Callable[[OutputBatch], Tensor]

LOSSES: dict[str, Loss] = {
    "softmax": softmax,
    "nce": nce,
    "snce": shared_nce,
    "bnce": of_batch.batch_nce,
    "chunk-bnce": of_chunk.chunk_nce,
}


def get_loss(name: str) -> Loss:
    """Find a loss by its name."""
    if name not in LOSSES:
        raise unknown_name("loss", name, LOSSES)
    return LOSSES[name]


def trained_positions(name: str, valid_TB: Tensor, num_noise: int) -> Tensor:
    """Say which of the positions that count a loss trains on: where the batch is the noise, one alone has none."""
    if name == "bnce":
        return of_batch.trained_positions(valid_TB, num_noise)
    if name == "chunk-bnce":
        return of_chunk.trained_positions(valid_TB)
    return valid_TB
