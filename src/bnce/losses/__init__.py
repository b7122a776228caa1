"""The losses by name: each sums over the positions of a batch. A new one is one file here and one record in `kinds`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from bnce.errors import UserError
from bnce.kinds.kind import load
from bnce.kinds.losses import LOSSES
from bnce.losses.counted import Counted, count_ids, count_positions, count_steps, count_streams
from bnce.losses.output_batch import OutputBatch

__all__ = ["Counted", "Loss", "OutputBatch", "count_targets", "get_each", "get_loss"]

Loss = Callable[[OutputBatch], Tensor]


def get_loss(name: str) -> Loss:
    """Find a loss by its name."""
    loss: Loss = LOSSES.find(name).load()
    return loss


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
) -> Counted:
    """Say which positions a loss trains on, and how many: where the batch is the noise, one alone has none."""
    kind = LOSSES.find(name)
    if not kind.batch_is_noise:
        return count_positions(target_TB, mask_TB, ignore_index)
    if not kind.whole_chunk:
        return count_steps(target_TB, mask_TB, ignore_index, num_noise)
    if stream_TB is not None:
        return count_ids(target_TB, mask_TB, ignore_index, stream_TB)
    return count_streams(target_TB, mask_TB, ignore_index)
