"""The elementwise part of the softmax loss in one visit to each row of logits: loss, and gradient in place.

Legend: N positions, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _loss_and_gradient(
    logit_NV,
    bias_V,
    target_N,
    valid_N,
    loss_N,
    second_N,
    log_z,
    penalty,
    stride,
    PART: tl.constexpr,
    PENALISED: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
):
    position = tl.program_id(0).to(tl.int64)
    row = logit_NV + position * stride
    target = tl.load(target_N + position)
    counts = 1.0 if PART else tl.load(valid_N + position).to(tl.float32)
    # First visit: the highest logit and the sum, kept lane by lane until the end.
    highest = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < V
        logit = tl.load(row + column, mask=inside, other=-float("inf")).to(tl.float32)
        logit += tl.load(bias_V + column, mask=inside, other=0.0)
        higher = tl.maximum(highest, logit)
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(highest - safe) + tl.exp(logit - safe)
        highest = higher
    top = tl.max(highest)
    log_total = top + tl.log(tl.sum(total * tl.exp(highest - top)))
    # A target that is no word must not pass for one: its loss is NaN, and nothing is read outside of the row.
    is_word = (target >= 0) & (target < V)
    own = tl.load(row + target, mask=is_word, other=0.0).to(tl.float32)
    own += tl.load(bias_V + target, mask=is_word, other=0.0)
    factor = 1.0
    if PART:
        tl.store(loss_N + position, log_total)
        tl.store(second_N + position, own)
    else:
        loss = log_total - tl.where(is_word | (counts == 0.0), own, float("nan"))
        if PENALISED:
            excess = log_total - tl.load(log_z)
            loss += penalty * excess * excess
            factor += 2.0 * penalty * excess
            tl.store(second_N + position, excess * counts)
        tl.store(loss_N + position, loss * counts)
    # Every lane must have read the target's logit before one of them writes over it.
    tl.debug_barrier()
    # Second visit, out of the cache if the row is short enough: p − one-hot in place of the logits, or p alone.
    for first in range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < V
        logit = tl.load(row + column, mask=inside, other=0.0).to(tl.float32)
        logit += tl.load(bias_V + column, mask=inside, other=0.0)
        error = tl.exp(logit - log_total)
        if not PART:
            error = (error * factor - tl.where(column == target, 1.0, 0.0)) * counts
        error = tl.where(inside, error, 0.0)  # padding beyond the last word has no gradient
        tl.store(row + column, error.to(logit_NV.dtype.element_ty), mask=column < stride)


def loss_and_gradient_(
    logit_NV: Tensor, bias_V: Tensor, target_N: Tensor, valid_N: Tensor, log_z: Tensor | None, penalty: float
) -> tuple[Tensor, Tensor]:
    """Compute −ln p of the targets (N,), and put the gradient with respect to the logits in their place.

    With `log_z`, penalty · (ln Z(context) − ln Z)² is added, and the difference comes second. Logits may have more
    columns than there are biases: padding, whose gradient is zero.
    """
    loss_N, excess_N = torch.zeros(2, len(logit_NV), dtype=torch.float32, device=logit_NV.device)
    _start(logit_NV, bias_V, target_N, valid_N, loss_N, excess_N, log_z, penalty)
    return loss_N, excess_N


def shares_(logit_NV: Tensor, bias_V: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
    """Put the softmax over these words in place of the logits; give ln of its sum (N,) and the targets' logits (N,).

    The words may be some of all: a target below 0 is not among them, and its logit is 0. Padding gets zeros.
    """
    log_total_N, own_N = torch.empty(2, len(logit_NV), dtype=torch.float32, device=logit_NV.device)
    _start(logit_NV, bias_V, target_N, target_N, log_total_N, own_N, is_part=True)
    return log_total_N, own_N


def _start(
    logit_NV: Tensor,
    bias_V: Tensor,
    target_N: Tensor,
    valid_N: Tensor,
    loss_N: Tensor,
    second_N: Tensor,
    log_z: Tensor | None = None,
    penalty: float = 0.0,
    *,
    is_part: bool = False,
) -> None:
    V = len(bias_V)
    block = min(BLOCK, triton.next_power_of_2(V))
    constant = loss_N if log_z is None else log_z  # not read where it is none
    tensors = logit_NV, bias_V, target_N, valid_N, loss_N, second_N, constant, float(penalty), logit_NV.stride(0)
    _loss_and_gradient[(len(logit_NV),)](
        *tensors, PART=is_part, PENALISED=log_z is not None, V=V, BLOCK=block, num_warps=8
    )
