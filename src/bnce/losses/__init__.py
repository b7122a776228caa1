"""The losses by name: each sums over the positions of a batch. A new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from bnce.errors import unknown_name
from bnce.losses.batch_nce import batch_nce
from bnce.losses.chunk_nce import chunk_nce
from bnce.losses.output_batch import OutputBatch
from bnce.losses.sampled_nce import nce, shared_nce
from bnce.losses.softmax_forms import softmax

__all__ = ["LOSSES", "Loss", "OutputBatch", "get_loss"]

Loss = Callable[[OutputBatch], Tensor]

LOSSES: dict[str, Loss] = {
    "softmax": softmax,
    "nce": nce,
    "snce": shared_nce,
    "bnce": batch_nce,
    "chunk-bnce": chunk_nce,
}


def get_loss(name: str) -> Loss:
    """Find a loss by its name."""
    if name not in LOSSES:
        raise unknown_name("loss", name, LOSSES)
    return LOSSES[name]
