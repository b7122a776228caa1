"""Chunk B-NCE on a GPU with equal words merged, from targets to the gradients of the whole tables in one node.

The sums are those of `merged_chunk_nce.py`, at shapes that do not depend on the data: there are as many columns as a
chunk of such targets has different words at most. A position whose word finds no column has a loss of NaN: that must
not pass for a result, and a GPU's host must not wait to be told.

Legend: T time steps, B streams, N = T·B positions, R positions of a block, U columns, D hidden, E = D padded, V
vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bnce import kernels, rows
from bnce.losses.blocked import MAX_SCORES
from bnce.losses.chunk_nce import check_streams
from bnce.losses.first_order import first_order_only
from bnce.losses.output_batch import OutputBatch
from bnce.machine.precision import product_dtype, product_in_float32

MIN_POSITIONS = 2048  # from so many on, merging equal words saves more than it costs
COLUMNS = 128  # what tensor cores like a number of columns to be a multiple of


def fused_chunk_nce(batch: OutputBatch, mean: bool) -> Tensor | None:
    """Compute the sum or the mean of the loss over the positions that count; None: this batch takes the plain form."""
    return _fused(batch, mean, lambda fast: fast.loss_and_gradient_)


def fused_chunk_softmax(batch: OutputBatch, mean: bool) -> Tensor | None:
    """Compute the same for chunk softmax."""

    def find(fast: Any) -> Any:
        softmax = kernels.choose("chunk_softmax", batch.weight_VD)
        assert softmax is not None  # where there is one kernel, there are all
        return functools.partial(softmax.merged_loss_and_gradient_, penalty=batch.penalty)

    return _fused(batch, mean, find)


def _fused(batch: OutputBatch, mean: bool, find_rule: Callable[[Any], Any]) -> Tensor | None:
    # With ids of streams, the longest stream would have to be known, too. A compiler fuses the plain form itself.
    if batch.stream_TB is not None or batch.target_TB.numel() == 0 or torch.compiler.is_compiling():
        return None
    fast = kernels.choose("merged_chunk_nce", batch.weight_VD)
    if fast is None or (batch.max_distinct_targets is None and batch.target_TB.numel() < MIN_POSITIONS):
        return None
    if batch.target_TB.shape[1] < 2:
        return None
    check_streams(batch)
    tables = batch.weight_VD, batch.bias_V, batch.log_z
    loss: Tensor = _FusedChunkLoss.apply(batch.hidden_TBD, *tables, batch, mean, fast, find_rule(fast))
    return loss


def _num_columns(batch: OutputBatch) -> int:
    """Bound the number of different targets: as somebody has counted them, or as targets that follow p_n have them."""
    most = batch.max_distinct_targets
    if most is None:
        most = batch.noise.max_distinct(batch.target_TB.numel())
    return -(-most // COLUMNS) * COLUMNS


class _FusedChunkLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_TBD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor,
        log_z: Tensor,
        batch: OutputBatch,
        mean: bool,
        fast: Any,
        rule: Any,
    ) -> Tensor:
        (T, B, D), V = hidden_TBD.shape, len(weight_VD)
        N, E, U, counted = T * B, -(-(D + 1) // 8) * 8, _num_columns(batch), batch.has_holes
        dtype = product_dtype(hidden_TBD)
        word_U, column_TB, count_U, sizes = fast.distinct_words(
            batch.target_TB,
            U,
            V,
            counted=counted,
            mask_TB=batch.valid_TB,
            ignore_index=batch.ignore_index,
            wrong=batch.wrong_room(),
        )
        # Where positions are counted, how many noise words one sees depends on its stream, and is not in the offset.
        _, offset_1U, row_1UE, _ = fast.columns(
            word_U.unsqueeze(0),
            weight_VD,
            bias_V,
            log_z,
            batch.noise.log_probs_V,
            dtype,
            width=E,
            num_noise=1 if counted else (B - 1) * T,
        )
        # Ones beside the hidden states make the gradient of the bias one more column of that of the weight.
        weight_UE, hidden_NE = row_1UE[0], fast.widen(hidden_TBD.flatten(0, 1), E, dtype)
        loss_N = torch.empty(N, dtype=torch.float32, device=hidden_TBD.device)
        num_rows = -(-N // -(-N * U // MAX_SCORES["cuda"]))
        hidden_grad_NE, weight_grad_UE = torch.empty_like(hidden_NE), None
        for begin in range(0, N, num_rows):
            block = slice(begin, begin + num_rows)
            gradient_RU = torch.mm(hidden_NE[block], weight_UE.t())
            rule(gradient_RU, offset_1U, count_U, column_TB, sizes, loss_N, begin)
            torch.mm(gradient_RU, weight_UE, out=hidden_grad_NE[block])
            part_UE = product_in_float32(gradient_RU.t(), hidden_NE[block])
            weight_grad_UE = part_UE if weight_grad_UE is None else weight_grad_UE.add_(part_UE)
        found: tuple[Tensor, Tensor | None] = fast.add_up(loss_N, sizes if mean else None, 1)
        loss, divisor = found
        ctx.save_for_backward(hidden_grad_NE, weight_grad_UE, word_U, divisor)
        ctx.hidden, ctx.sparse = (hidden_TBD.shape, hidden_TBD.dtype), batch.sparse
        ctx.tables = V, weight_VD.dtype, bias_V.dtype
        return loss

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad_NE, weight_grad_UE, word_U, divisor = ctx.saved_tensors
        (hidden_shape, hidden_dtype), (V, weight_dtype, bias_dtype) = ctx.hidden, ctx.tables
        D = hidden_shape[2]
        factor = grads[0] if divisor is None else grads[0] / divisor
        _, wants_weight, wants_bias, wants_log_z, *_ = ctx.needs_input_grad
        weight_UD, bias_U = (weight_grad_UE[:, :D] * factor).to(weight_dtype), weight_grad_UE[:, D] * factor
        return (
            (hidden_grad_NE[:, :D] * factor).to(hidden_dtype).view(hidden_shape),
            rows.table_gradient((V, D), word_U, weight_UD, sparse=ctx.sparse) if wants_weight else None,
            rows.table_gradient((V,), word_U, bias_U.to(bias_dtype), sparse=ctx.sparse) if wants_bias else None,
            -bias_U.sum() if wants_log_z else None,
            None,
            None,
            None,
            None,
        )
