"""The implementations: each sums −ln p(target) over the positions of a batch that count.

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


def plain(batch: bnce.OutputBatch) -> Tensor:
    """Compute all logits at once."""
    hidden_ND, target_N, valid_N = batch.flat()
    return cross_entropy(hidden_ND, batch.weight_VD, batch.bias_V, target_N, valid_N)


def plain_each(batch: bnce.OutputBatch) -> Tensor:
    """Compute −ln p(target) of every position (T, B)."""
    hidden_ND, target_N, _ = batch.flat()
    hidden_ND = hidden_ND.to(batch.weight_VD.dtype)
    return batch.where_counted(cross_entropies(hidden_ND, batch.weight_VD, batch.bias_V, target_N))


def compiled(batch: bnce.OutputBatch) -> Tensor:
    """Let PyTorch compile the plain one."""
    hidden_ND, target_N, valid_N = batch.flat()
    return _compiled_cross_entropy()(hidden_ND, batch.weight_VD, batch.bias_V, target_N, valid_N)


def linear(batch: bnce.OutputBatch) -> Tensor:
    """Use PyTorch's function for a linear layer and its cross entropy."""
    hidden_ND, marked_N = _with_marks(batch)
    dtype = product_dtype(batch.weight_VD)
    return F.linear_cross_entropy(
        hidden_ND.to(dtype),
        batch.weight_VD.to(dtype),
        marked_N,
        linear_bias=batch.bias_V.to(dtype),
        reduction="sum",
        ignore_index=IGNORED,
        options=torch.nn.LinearCrossEntropyOptions(),
    ).float()


def cce(batch: bnce.OutputBatch) -> Tensor:
    """Use Cut Cross-Entropy (Wijmans et al., 2024), with the bias as one more column."""
    from cut_cross_entropy import linear_cross_entropy

    hidden_ND, marked_N = _with_marks(batch)
    dtype = product_dtype(batch.weight_VD)
    wide_NE = _padded(torch.cat([hidden_ND, torch.ones_like(hidden_ND[:, :1])], 1), dtype)
    wide_VE = _padded(torch.cat([batch.weight_VD, batch.bias_V.unsqueeze(1)], 1), dtype)
    loss: Tensor = linear_cross_entropy(wide_NE, wide_VE, marked_N, ignore_index=IGNORED, reduction="sum")
    return loss.float()


def liger(batch: bnce.OutputBatch) -> Tensor:
    """Use Liger's fused linear cross entropy."""
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    hidden_ND, marked_N = _with_marks(batch)
    dtype = product_dtype(batch.weight_VD)
    layer = batch.weight_VD.to(dtype), marked_N, batch.bias_V.to(dtype)
    answer = LigerFusedLinearCrossEntropyFunction.apply(hidden_ND.to(dtype), *layer, None, IGNORED, 0.0, 0.0, "sum")
    loss: Tensor = answer[0]
    return loss.float()


def cross_entropy(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, target_N: Tensor, valid_N: Tensor | None
) -> Tensor:
    """Sum −ln softmax(h·W + c)[target]."""
    loss_N = cross_entropies(hidden_ND, weight_VD, bias_V, target_N)
    return loss_N.sum() if valid_N is None else torch.where(valid_N, loss_N, 0.0).sum()


def cross_entropies(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, target_N: Tensor) -> Tensor:
    """Compute the same for each position (N,)."""
    return F.cross_entropy(at_least_float32(F.linear(hidden_ND, weight_VD, bias_V)), target_N, reduction="none")


@functools.cache
def _compiled_cross_entropy() -> Callable[..., Tensor]:
    return torch.compile(cross_entropy)


def _with_marks(batch: bnce.OutputBatch) -> tuple[Tensor, Tensor]:
    hidden_ND, target_N, valid_N = batch.flat()
    return hidden_ND, target_N if valid_N is None else torch.where(valid_N, target_N, IGNORED)


def _padded(wide_NE: Tensor, dtype: torch.dtype) -> Tensor:
    return F.pad(wide_NE, (0, -wide_NE.shape[1] % 8)).to(dtype)
