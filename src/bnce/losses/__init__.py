"""The losses by name: each sums over the positions of a batch. A new one is one file here and one record in `kinds`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from bnce.kinds.losses import LOSSES
from bnce.losses import batch_nce as of_batch
from bnce.losses import chunk_nce as of_chunk
from bnce.losses.output_batch import OutputBatch

__all__ = ["Loss", "OutputBatch", "get_loss", "trained_positions"]

Loss = Callable[[OutputBatch], Tensor]


def get_loss(name: str) -> Loss:
    """Find a loss by its name."""
    loss: Loss = LOSSES.find(name).load()
    return loss


def trained_positions(name: str, valid_TB: Tensor, num_noise: int, stream_TB: Tensor | None = None) -> Tensor:
    """Say which of the positions that count a loss trains on: where the batch is the noise, one alone has none."""
    kind = LOSSES.find(name)
    if not kind.batch_is_noise:
        return valid_TB
    if kind.whole_chunk:
        return of_chunk.trained_positions(valid_TB, stream_TB)
    return of_batch.trained_positions(valid_TB, num_noise)
