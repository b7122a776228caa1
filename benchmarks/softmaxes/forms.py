"""The implementations: each gives −ln p(target) of every position of a batch, 0 where one does not count.

Legend: N positions, D hidden, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import bnce
from bnce.machine.precision import at_least_float32, product_dtype

IGNORED = -100  # the target of a position that does not count, as PyTorch and others have it


def plain(batch: bnce.OutputBatch, record: bnce.Loss) -> Tensor:
    """Compute all logits at once."""
    return _each(batch, cross_entropies)


def compiled(batch: bnce.OutputBatch, record: bnce.Loss) -> Tensor:
    """Let PyTorch compile the plain one."""
    return _each(batch, _compiled_cross_entropies())


def linear(batch: bnce.OutputBatch, record: bnce.Loss) -> Tensor:
    """Use PyTorch's function for a linear layer and its cross entropy."""
    hidden_ND, marked_N = _with_marks(batch)
    dtype = product_dtype(batch.weight_VD)
    loss_N = F.linear_cross_entropy(
        hidden_ND.to(dtype),
        batch.weight_VD.to(dtype),
        marked_N,
        linear_bias=batch.bias_V.to(dtype),
        reduction="none",
        ignore_index=IGNORED,
    )
    return loss_N.float().reshape(batch.target_TB.shape)


def cce(batch: bnce.OutputBatch, record: bnce.Loss) -> Tensor:
    """Use Cut Cross-Entropy (Wijmans et al., 2024), with the bias as one more column."""
    from cut_cross_entropy import linear_cross_entropy

    hidden_ND, marked_N = _with_marks(batch)
    dtype = product_dtype(batch.weight_VD)
    wide_NE = _padded(torch.cat([hidden_ND, torch.ones_like(hidden_ND[:, :1])], 1), dtype)
    wide_VE = _padded(torch.cat([batch.weight_VD, batch.bias_V.unsqueeze(1)], 1), dtype)
    loss_N: Tensor = linear_cross_entropy(wide_NE, wide_VE, marked_N, ignore_index=IGNORED, reduction="none")
    return loss_N.float().reshape(batch.target_TB.shape)


def liger(batch: bnce.OutputBatch, record: bnce.Loss) -> Tensor:
    """Use Liger's fused linear cross entropy, which knows the sum alone: every position has an equal part of it."""
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    hidden_ND, marked_N = _with_marks(batch)
    dtype = product_dtype(batch.weight_VD)
    layer = batch.weight_VD.to(dtype), marked_N, batch.bias_V.to(dtype)
    answer = LigerFusedLinearCrossEntropyFunction.apply(hidden_ND.to(dtype), *layer, None, IGNORED, 0.0, 0.0, "sum")
    total: Tensor = answer[0]
    return (total.float() / batch.target_TB.numel()).expand(batch.target_TB.shape)


def _each(batch: bnce.OutputBatch, function: Callable[..., Tensor]) -> Tensor:
    words, tables = batch.words(), (batch.weight_VD, batch.bias_V)
    hidden_ND = batch.hidden_TBD.flatten(0, 1).to(batch.weight_VD.dtype)
    return words.where_counted(function(hidden_ND, *tables, words.target_TB.flatten()))


def cross_entropies(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, target_N: Tensor) -> Tensor:
    """Compute the same for each position (N,)."""
    return F.cross_entropy(at_least_float32(F.linear(hidden_ND, weight_VD, bias_V)), target_N, reduction="none")


@functools.cache
def _compiled_cross_entropies() -> Callable[..., Tensor]:
    return torch.compile(cross_entropies)


def _with_marks(batch: bnce.OutputBatch) -> tuple[Tensor, Tensor]:
    words = batch.words()
    target_TB = words.target_TB if words.valid_TB is None else words.target_TB.where(words.valid_TB, IGNORED)
    return batch.hidden_TBD.flatten(0, 1), target_TB.flatten()


def _padded(wide_NE: Tensor, dtype: torch.dtype) -> Tensor:
    return F.pad(wide_NE, (0, -wide_NE.shape[1] % 8)).to(dtype)
