"""Cross entropy with the full softmax over the vocabulary (Eq. (1)): what the other losses approximate.

In `chunked_cross_entropy` the logits exist for a few positions at a time and their gradient is formed in the same
visit, so memory is bounded and no product is done twice. On two CPU cores it trains 1.6 times as many words per second
as PyTorch's plain cross entropy at V = 20K, which makes the comparison fair (`benchmarks/softmax.py` has others).
`penalised_cross_entropy` is the same with a penalty on ln Z(context), for `self_normalised_softmax.py`.

Legend: T time steps, B streams, N positions, D hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce import kernels
from bnce.losses.first_order import first_order_only
from bnce.losses.output_batch import OutputBatch
from bnce.machine.precision import at_least_float32, product_dtype, product_in_float32, sum_dtype, widen

# Numbers in one block of logits: on a CPU what its caches like, on a GPU what fills the chip.
MAX_LOGITS = {"cpu": 2**22, "cuda": 2**31}


def softmax(batch: OutputBatch) -> Tensor:
    """Sum −ln p(target) over the positions that count."""
    hidden_ND, target_N, valid_N = batch.flat()
    return chunked_cross_entropy(hidden_ND, batch.weight_VD, batch.bias_V, target_N, valid_N)


def softmax_each(batch: OutputBatch) -> Tensor:
    """Compute −ln p(target) of every position (T, B), with all logits at once."""
    hidden_ND, target_N, _ = batch.flat()
    hidden_ND = hidden_ND.to(batch.weight_VD.dtype)
    return batch.where_counted(cross_entropies(hidden_ND, batch.weight_VD, batch.bias_V, target_N))


def cross_entropies(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, target_N: Tensor) -> Tensor:
    """Compute −ln softmax(h·W + c)[target] for each position (N,), all logits at once."""
    return F.cross_entropy(at_least_float32(F.linear(hidden_ND, weight_VD, bias_V)), target_N, reduction="none")


def chunked_cross_entropy(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, target_N: Tensor, valid_N: Tensor | None = None
) -> Tensor:
    """Sum the same over positions, a few at a time."""
    return penalised_cross_entropy(hidden_ND, weight_VD, bias_V, target_N, valid_N, None, 0.0)


def penalised_cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    target_N: Tensor,
    valid_N: Tensor | None,
    log_z: Tensor | None,
    penalty: float,
) -> Tensor:
    """Add penalty · (ln Σ_v exp(h·w_v + c_v) − ln Z)² for each position; None: nothing is added."""
    dtype = product_dtype(weight_VD)
    # Asked here, because inside a Function gradients always look switched off.
    wants_grad = torch.is_grad_enabled()
    loss: Tensor = _ChunkedCrossEntropy.apply(
        hidden_ND, weight_VD, bias_V, target_N, valid_N, log_z, penalty, dtype, wants_grad
    )
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor,
        target_N: Tensor,
        valid_N: Tensor | None,
        log_z: Tensor | None,
        penalty: float,
        dtype: torch.dtype,
        wants_grad: bool,
    ) -> Tensor:
        (N, D), V = hidden_ND.shape, len(weight_VD)
        num_rows = max(1, min(N, MAX_LOGITS.get(hidden_ND.device.type, 2**28) // V))
        needs_grad = wants_grad and any(ctx.needs_input_grad)
        valid_N = torch.ones_like(target_N, dtype=torch.bool) if valid_N is None else valid_N
        with torch.autocast(hidden_ND.device.type, enabled=False):
            hidden_NE, weight_VE = widen(hidden_ND, 1.0, dtype), widen(pad_rows(weight_VD, dtype), 0.0, dtype)
            loss = torch.zeros((), dtype=sum_dtype(dtype), device=hidden_ND.device)
            excess = torch.zeros_like(loss)
            hidden_grad_NE = torch.empty_like(hidden_NE) if needs_grad else hidden_NE
            weight_grad_VE: Tensor | None = None
            if needs_grad and N == 0:
                weight_grad_VE = torch.zeros(weight_VE.shape, dtype=sum_dtype(dtype), device=hidden_ND.device)
            for begin in range(0, N, num_rows):
                block = slice(begin, begin + num_rows)
                error_NV, loss_N, excess_N = _error_and_loss(
                    hidden_NE[block], weight_VE, bias_V, target_N[block], valid_N[block], log_z, penalty
                )
                loss += loss_N.sum()
                excess += excess_N.sum()
                if not needs_grad:
                    continue
                torch.mm(error_NV, weight_VE, out=hidden_grad_NE[block])
                if weight_grad_VE is None:
                    weight_grad_VE = product_in_float32(error_NV.t(), hidden_NE[block])
                elif dtype == weight_VD.dtype:
                    weight_grad_VE.addmm_(error_NV.t(), hidden_NE[block])
                else:
                    weight_grad_VE += product_in_float32(error_NV.t(), hidden_NE[block])
        if weight_grad_VE is not None:
            ctx.save_for_backward(hidden_grad_NE, weight_grad_VE, None if log_z is None else -2 * penalty * excess)
            ctx.sizes, ctx.dtypes = (V, D), (hidden_ND.dtype, weight_VD.dtype, bias_V.dtype)
        return loss

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad_NE, weight_grad_VE, log_z_grad = ctx.saved_tensors
        (V, D), (hidden_dtype, weight_dtype, bias_dtype) = ctx.sizes, ctx.dtypes
        return (
            (hidden_grad_NE[:, :D] * grads[0]).to(hidden_dtype),
            (weight_grad_VE[:V, :D] * grads[0]).to(weight_dtype),
            (weight_grad_VE[:V, D] * grads[0]).to(bias_dtype),
            None,
            None,
            None if log_z_grad is None else log_z_grad * grads[0],
            None,
            None,
            None,
        )


def pad_rows(weight_VD: Tensor, dtype: torch.dtype) -> Tensor:
    """Add rows of zeros up to a number of words that tensor cores like."""
    missing = missing_rows(weight_VD, dtype)
    return F.pad(weight_VD, (0, 0, 0, missing)) if missing else weight_VD


def missing_rows(weight_VD: Tensor, dtype: torch.dtype) -> int:
    """Count the rows that are missing up to a number that tensor cores like, where products are in a narrow type."""
    return -len(weight_VD) % 8 if dtype.itemsize < 4 else 0


def _error_and_loss(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    target_N: Tensor,
    valid_N: Tensor,
    log_z: Tensor | None,
    penalty: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradient of the logits (N, V), p − one-hot without a penalty, and the loss of the targets (N,).

    The third is ln Z(context) − ln Z (N,), zeros where it does not matter. Padding has no part.
    """
    fast = kernels.choose("softmax", hidden_ND)
    if fast is not None:
        logit_NV = torch.mm(hidden_ND, weight_VD.t())
        return logit_NV, *fast.loss_and_gradient_(logit_NV, bias_V, target_N, valid_N, log_z, penalty)
    if hidden_ND.dtype == bias_V.dtype and bias_V.dtype.itemsize >= 4:
        logit_NV = torch.addmm(bias_V, hidden_ND, weight_VD.t())
    else:
        logit_NV = product_in_float32(hidden_ND, weight_VD.t())
        logit_NV[:, : len(bias_V)] += bias_V
        logit_NV[:, len(bias_V) :] = -torch.inf  # the rows of padding
    highest_N1 = logit_NV.amax(1, keepdim=True)
    target_N1 = target_N.unsqueeze(1)
    target_logit_N1 = logit_NV.gather(1, target_N1)
    prob_NV = logit_NV.sub_(highest_N1).exp_()
    total_N1 = prob_NV.sum(1, keepdim=True)
    log_total_N1 = total_N1.log() + highest_N1
    loss_N1, excess_N1 = log_total_N1 - target_logit_N1, torch.zeros_like(log_total_N1)
    if log_z is not None:
        excess_N1 = log_total_N1 - log_z
        loss_N1 = loss_N1 + penalty * excess_N1.square()
    error_NV = prob_NV.div_(total_N1)
    if log_z is not None:
        error_NV.mul_(1.0 + 2.0 * penalty * excess_N1)
    error_NV.scatter_add_(1, target_N1, torch.full_like(loss_N1, -1.0))
    error_NV.mul_(valid_N.unsqueeze(1))
    loss_N, excess_N = torch.where(valid_N, torch.cat([loss_N1, excess_N1], 1).t(), 0.0)
    return error_NV.to(hidden_ND.dtype), loss_N, excess_N
