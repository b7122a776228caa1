"""The losses: each gives the loss of every position of a batch. A new one is one file here and one record."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from bnce.errors import UserError
from bnce.losses import adaptive_softmax as adaptive
from bnce.losses import (
    batch_nce,
    chunk_nce,
    chunk_softmax,
    fused_batch_nce,
    fused_chunk_nce,
    sampled_nce,
    sampled_softmax,
    self_normalised_softmax,
    softmax,
)
from bnce.losses.counted import Counted, count_positions, count_steps, count_streams
from bnce.losses.output_batch import OutputBatch
from bnce.registry import Chunk, Loss, Softmax, load

__all__ = ["Computed", "Counted", "OutputBatch", "compute", "count_targets"]

Plain = Callable[[OutputBatch], Tensor]


class Computed(NamedTuple):
    """How a loss is computed: its sum, by a fused way as well if there is one, and the loss of each position (T, B)."""

    total: Plain
    each: Plain
    # The sum, or the mean if that is asked for, of a loss that counts positions on its way; None: it cannot here.
    fused: Callable[[OutputBatch, bool], Tensor | None] | None = None


# Of the losses here by the code of their records, until each of them is one function of batch and record.
_OURS: dict[str, Computed] = {
    "bnce.losses.sampled_nce:nce": Computed(sampled_nce.nce, sampled_nce.nce_each),
    "bnce.losses.sampled_nce:shared_nce": Computed(sampled_nce.shared_nce, sampled_nce.shared_nce_each),
    "bnce.losses.sampled_softmax:sampled_softmax": Computed(
        sampled_softmax.sampled_softmax, sampled_softmax.sampled_softmax_each
    ),
    "bnce.losses.batch_nce:batch_nce": Computed(
        batch_nce.batch_nce, batch_nce.batch_nce_each, fused_batch_nce.fused_batch_nce
    ),
    "bnce.losses.adaptive_softmax:adaptive_softmax": Computed(
        adaptive.adaptive_softmax, adaptive.adaptive_softmax_each
    ),
}
_SOFTMAX = Computed(softmax.softmax, softmax.softmax_each)
_SELF_NORMALISED = Computed(
    self_normalised_softmax.self_normalised_softmax, self_normalised_softmax.self_normalised_softmax_each
)
_CHUNK_NCE = Computed(chunk_nce.chunk_nce, chunk_nce.chunk_nce_each, fused_chunk_nce.fused_chunk_nce)
_CHUNK_SOFTMAX = Computed(
    chunk_softmax.chunk_softmax, chunk_softmax.chunk_softmax_each, fused_chunk_nce.fused_chunk_softmax
)


def compute(loss: Loss) -> Computed:
    """Find how a loss is computed."""
    if not loss.code.startswith("bnce."):
        each = functools.partial(_positions, load(loss.code), loss)
        return Computed(functools.partial(_added_up, each), each)
    if isinstance(loss, Softmax):
        return _SELF_NORMALISED if loss.penalty else _SOFTMAX
    if isinstance(loss, Chunk):
        if loss.beta not in (0, 1):
            raise UserError(f"loss.beta is {loss.beta:g}: it must be 0 or 1.")
        found = _CHUNK_NCE if loss.beta else _CHUNK_SOFTMAX
    else:
        found = _OURS[loss.code]
    return found if found.fused is None else found._replace(total=functools.partial(_fused_or_plain, found))


def _positions(function: Callable[[OutputBatch, Loss], Tensor], loss: Loss, batch: OutputBatch) -> Tensor:
    return function(batch, loss)


def _added_up(each: Plain, batch: OutputBatch) -> Tensor:
    return each(batch).sum()


def _fused_or_plain(computed: Computed, batch: OutputBatch) -> Tensor:
    assert computed.fused is not None
    loss = computed.fused(batch, False)
    return computed.total(batch) if loss is None else loss


def count_targets(
    loss: Loss,
    target_TB: Tensor,
    mask_TB: Tensor | None,
    ignore_index: int,
    stream_TB: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Counted:
    """Say which positions a loss trains on, and how many: where the batch is the noise, one alone has none."""
    if loss.batch_noise == "none":
        return count_positions(target_TB, mask_TB, ignore_index)
    if loss.batch_noise == "step":
        return count_steps(target_TB, mask_TB, ignore_index, getattr(loss, "num_noise", 0), dtype)
    return count_streams(target_TB, mask_TB, ignore_index, stream_TB, dtype)
