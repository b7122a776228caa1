"""The losses by name: each sums over the positions of a batch. A new one is one file here and one record in `kinds`."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from bnce.errors import UserError
from bnce.kinds.kind import load
from bnce.kinds.losses import LOSSES
from bnce.losses import fused_batch_nce, fused_chunk_nce
from bnce.losses.counted import Counted, count_positions, count_steps, count_streams
from bnce.losses.output_batch import OutputBatch

__all__ = ["Counted", "FusedLoss", "Loss", "OutputBatch", "count_targets", "get_each", "get_fused", "get_loss"]

Loss = Callable[[OutputBatch], Tensor]
# A loss that counts positions on its way: their sum, or their mean if that is asked for; None: it cannot here.
FusedLoss = Callable[[OutputBatch, bool], Tensor | None]

_FUSED: dict[str, FusedLoss] = {
    "bnce": fused_batch_nce.fused_batch_nce,
    "chunk-bnce": fused_chunk_nce.fused_chunk_nce,
    "chunk-softmax": fused_chunk_nce.fused_chunk_softmax,
}


def get_loss(name: str) -> Loss:
    """Find a loss by its name."""
    plain: Loss = LOSSES.find(name).load()
    fused = get_fused(name)
    return plain if fused is None else functools.partial(_fused_or_plain, fused, plain)


def get_fused(name: str) -> FusedLoss | None:
    """Find the fused form of a loss, if there is one."""
    return _FUSED.get(name)


def _fused_or_plain(fused: FusedLoss, plain: Loss, batch: OutputBatch) -> Tensor:
    loss = fused(batch, False)
    return plain(batch) if loss is None else loss


def get_each(name: str) -> Loss:
    """Find what computes a loss for every position (T, B)."""
    place = LOSSES.find(name).each_by
    if place is None:
        raise UserError(f'The loss {name} has no losses per position: use reduction="mean" or "sum".')
    each: Loss = load(place)
    return each


def count_targets(
    name: str,
    target_TB: Tensor,
    mask_TB: Tensor | None,
    ignore_index: int,
    num_noise: int,
    stream_TB: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Counted:
    """Say which positions a loss trains on, and how many: where the batch is the noise, one alone has none."""
    kind = LOSSES.find(name)
    if not kind.batch_is_noise:
        return count_positions(target_TB, mask_TB, ignore_index)
    if not kind.whole_chunk:
        return count_steps(target_TB, mask_TB, ignore_index, num_noise, dtype)
    return count_streams(target_TB, mask_TB, ignore_index, stream_TB, dtype)
