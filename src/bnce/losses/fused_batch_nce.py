"""B-NCE on a GPU, from targets to the gradients of the whole tables in one node of the autograd graph.

In a loop that starts kernels one by one, the host is slower than the GPU. So everything between the dense products is
one kernel: one finds the columns, counts positions, and reads output rows, another computes loss and gradient. The
equations are those of `batch_nce.py`, which is the plain form of this.

Tensor cores read 16 bytes at a time, so rows of products are padded to a multiple of that: columns that count nowhere
are added to the M of a step, and zeros to hidden states and output rows whose D is no such multiple.

Legend: T time steps, B streams, M columns, D hidden, E = D padded, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bnce import kernels, rows
from bnce.losses.batch_nce import column_words
from bnce.losses.first_order import first_order_only
from bnce.losses.output_batch import OutputBatch
from bnce.machine.precision import product_dtype, product_in_float32

ALIGNED = 8  # numbers of two bytes that are read at once


def fused_batch_nce(batch: OutputBatch, mean: bool) -> Tensor | None:
    """Compute the sum or the mean of the loss over the positions that count.

    None: there are no kernels for this batch, so it takes the plain form. A compiler fuses that one itself.
    """
    if batch.target_TB.numel() == 0 or batch.target_TB.shape[1] + batch.num_noise < 2:
        return None
    if torch.compiler.is_compiling():
        return None
    fast = kernels.choose("batch_nce", batch.weight_VD)
    if fast is None:
        return None
    loss: Tensor = _FusedBatchNce.apply(batch.hidden_TBD, batch.weight_VD, batch.bias_V, batch.log_z, batch, mean, fast)
    return loss


class _FusedBatchNce(torch.autograd.Function):
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
    ) -> Tensor:
        dtype, K, (T, B, D) = product_dtype(weight_VD), batch.num_noise, hidden_TBD.shape
        column_TM, E = column_words(batch), _aligned(D)
        M = column_TM.shape[1]
        found_TM, offset_TM, row_TME, count_T = fast.columns(
            column_TM,
            weight_VD,
            bias_V,
            log_z,
            batch.noise.log_probs_V,
            dtype,
            width=E,
            room=_aligned(M),
            num_noise=M - 1,
            num_drawn=K,
            log_drawn_V=None if batch.drawn is None else batch.drawn.log_probs_V,
            counted=batch.has_holes,
            mask_TB=batch.valid_TB,
            ignore_index=batch.ignore_index,
            wrong=batch.wrong_room(),
        )
        if E == D:
            hidden_TBE = hidden_TBD.to(dtype)
        else:
            hidden_TBE = fast.widen(hidden_TBD.flatten(0, 1), E, dtype, 0.0).view(T, B, E)
        product_TBM = product_in_float32(hidden_TBE, row_TME.transpose(1, 2))  # L^t · W^t of Eq. (7)
        loss_TB, gradient_TBM = fast.loss_and_gradient(product_TBM, offset_TM, dtype)
        found: tuple[Tensor, Tensor | None] = fast.add_up(loss_TB, count_T if mean else None, len(loss_TB))
        loss, divisor = found
        ctx.save_for_backward(hidden_TBE, row_TME, gradient_TBM, found_TM, divisor)
        ctx.sparse, ctx.tables = batch.sparse, (weight_VD.shape, weight_VD.dtype, bias_V.dtype)
        ctx.hidden_dtype, ctx.fast = hidden_TBD.dtype, fast
        return loss

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TBE, row_TME, gradient_TBM, found_TM, divisor = ctx.saved_tensors
        (V, D), weight_dtype, bias_dtype = ctx.tables
        factor = grads[0] if divisor is None else grads[0] / divisor
        gradient_TBM, bias_TM = ctx.fast.scale(gradient_TBM, factor)  # Eq. (10)
        weight_TMD = product_in_float32(gradient_TBM.transpose(1, 2), hidden_TBE[..., :D])  # Eq. (9)
        hidden_TBD = torch.bmm(gradient_TBM, row_TME)[..., :D]  # Eq. (11)
        found_N = found_TM.view(-1)
        _, wants_weight, wants_bias, wants_log_z, *_ = ctx.needs_input_grad
        weight_ND, bias_N = weight_TMD.view(-1, D).to(weight_dtype), bias_TM.view(-1).to(bias_dtype)
        return (
            hidden_TBD.to(ctx.hidden_dtype),
            rows.table_gradient((V, D), found_N, weight_ND, sparse=ctx.sparse) if wants_weight else None,
            rows.table_gradient((V,), found_N, bias_N, sparse=ctx.sparse) if wants_bias else None,
            -bias_TM.sum() if wants_log_z else None,
            None,
            None,
            None,
        )


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
