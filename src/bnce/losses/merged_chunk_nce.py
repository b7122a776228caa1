"""Chunk B-NCE with equal words merged.

The N targets of a chunk have U distinct words; in text U is about a third of N. A word that occurs m_u times becomes
one column with weight m_u. The targets of the position's own stream are subtracted:

    J = Σ_i [ softplus(−s_ii) + Σ_u m_u softplus(s_iu) − Σ_{j in own stream} softplus(s_ij) ]

This is the plain form's sum in another order. On a CPU there is one column per distinct word. A captured GPU step has
fixed shapes: it has as many columns as the chunk with the most distinct words needs.

Legend: T time steps, B streams, N = T·B positions, R positions of a block, U different words, D hidden, E = D padded.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bnce import kernels
from bnce.losses.output_batch import OutputBatch
from bnce.machine.precision import product_dtype, product_in_float32, widen

# Numbers in one block of scores: near the processor on a CPU, enough to fill the chip on a GPU.
MAX_SCORES = {"cpu": 2**20, "cuda": 2**25}
COLUMNS = 128  # what tensor cores like a number of columns to be a multiple of


def merged_chunk_nce(batch: OutputBatch) -> Tensor:
    """Sum the chunk B-NCE loss over all positions of a chunk."""
    T, B = batch.target_TB.shape
    word_U, column_TB, count_U, too_many = _distinct_words(batch)
    weight_UD, bias_U = batch.output_rows(word_U)
    offset_U = bias_U.float() - batch.log_z - batch.noise.log_prob(word_U) - math.log((B - 1) * T)
    hidden_ND = batch.hidden_TBD.reshape(T * B, -1)
    loss: Tensor = _MergedChunkNce.apply(hidden_ND, weight_UD, offset_U, column_TB, count_U, product_dtype(hidden_ND))
    # A wrong `max_distinct_targets` must not pass for a result, and a GPU's host must not wait to be told.
    return loss if too_many is None else torch.where(too_many, torch.nan, loss)


def can_merge(batch: OutputBatch) -> bool:
    """Say whether equal words can be merged: a captured GPU step must know the largest number of columns beforehand."""
    if kernels.choose("merged_chunk_nce", batch.target_TB) is not None:
        return batch.max_distinct_targets is not None
    return batch.target_TB.device.type == "cpu"


def _distinct_words(batch: OutputBatch) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Give the distinct targets, each position's column, the count of each target, and whether they are too many."""
    fast = kernels.choose("merged_chunk_nce", batch.target_TB)
    if batch.max_distinct_targets is None or fast is None:
        word_U, column_TB, count_U = torch.unique(batch.target_TB, return_inverse=True, return_counts=True)
        return word_U, column_TB, count_U, None
    num_columns = -(-batch.max_distinct_targets // COLUMNS) * COLUMNS
    word_U, column_TB, count_U, num_words = fast.distinct_words(batch.target_TB, num_columns, len(batch.weight_VD))
    return word_U, column_TB, count_U, num_words > num_columns


class _MergedChunkNce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_UD: Tensor,
        offset_U: Tensor,
        column_TB: Tensor,
        count_U: Tensor,
        dtype: torch.dtype,
    ) -> Tensor:
        N, D = hidden_ND.shape
        num_blocks = -(-N * len(weight_UD) // MAX_SCORES.get(hidden_ND.device.type, 2**25))
        num_rows = -(-N // num_blocks)
        hidden_NE, weight_UE = widen(hidden_ND, 1.0, dtype), widen(weight_UD, 0.0, dtype)
        loss = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        hidden_grad_NE = torch.empty_like(hidden_NE)
        weight_grad_UE = torch.zeros(weight_UE.shape, dtype=torch.float32, device=hidden_ND.device)
        with torch.autocast(hidden_ND.device.type, enabled=False):
            for begin in range(0, N, num_rows):
                block = slice(begin, min(begin + num_rows, N))
                gradient_RU = torch.mm(hidden_NE[block], weight_UE.t())
                loss += loss_and_gradient_(gradient_RU, offset_U, count_U, column_TB, begin)
                torch.mm(gradient_RU, weight_UE, out=hidden_grad_NE[block])
                weight_grad_UE += product_in_float32(gradient_RU.t(), hidden_NE[block])
        ctx.save_for_backward(hidden_grad_NE, weight_grad_UE)
        ctx.num_columns, ctx.dtypes = D, (hidden_ND.dtype, weight_UD.dtype)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad_NE, weight_grad_UE = ctx.saved_tensors
        D, (hidden_dtype, weight_dtype) = ctx.num_columns, ctx.dtypes
        return (
            (hidden_grad_NE[:, :D] * grads[0]).to(hidden_dtype),
            (weight_grad_UE[:, :D] * grads[0]).to(weight_dtype),
            weight_grad_UE[:, D] * grads[0],
            None,
            None,
            None,
        )


@kernels.with_twin("merged_chunk_nce")
def loss_and_gradient_(product_RU: Tensor, offset_U: Tensor, count_U: Tensor, column_TB: Tensor, begin: int) -> Tensor:
    """Compute the loss of the positions from `begin` on; in the products' place comes the gradient of their scores."""
    position_R = torch.arange(begin, begin + len(product_RU), device=product_RU.device)
    own_RT = column_TB[:, position_R % column_TB.shape[1]].t()  # the columns of a position's own stream
    target_R1 = column_TB.reshape(-1)[position_R].unsqueeze(1)
    score_RU = (product_RU.float() if product_RU.dtype.itemsize < 4 else product_RU).add_(offset_U)
    count_U = count_U.to(score_RU.dtype)
    own_score_RT, target_score_R1 = score_RU.gather(1, own_RT), score_RU.gather(1, target_R1)
    loss = torch.mv(F.softplus(score_RU), count_U).sum()
    loss = loss - F.softplus(own_score_RT).sum() + F.softplus(-target_score_R1).sum()
    gradient_RU = score_RU.sigmoid_().mul_(count_U)
    gradient_RU.scatter_add_(1, own_RT, -torch.sigmoid(own_score_RT))
    gradient_RU.scatter_add_(1, target_R1, torch.sigmoid(target_score_R1) - 1.0)
    product_RU.copy_(gradient_RU)  # nothing to do where they are one
    return loss
