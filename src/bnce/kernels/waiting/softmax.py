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
    excess_N,
    log_z,
    penalty,
    stride,
    PENALISED: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
):
    position = tl.program_id(0).to(tl.int64)
    row = logit_NV + position * stride
    target = tl.load(target_N + position)
    counts = tl.load(valid_N + position).to(tl.float32)
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
    loss = log_total - tl.where(is_word | (counts == 0.0), own, float("nan"))
    if PENALISED:
        excess = log_total - tl.load(log_z)
        loss += penalty * excess * excess
        factor += 2.0 * penalty * excess
        tl.store(excess_N + position, excess * counts)
    tl.store(loss_N + position, loss * counts)
    # Every lane must have read the target's logit before one of them writes over it.
    tl.debug_barrier()
    # Second visit, out of the cache if the row is short enough: p − one-hot in place of the logits.
    for first in range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < V
        logit = tl.load(row + column, mask=inside, other=0.0).to(tl.float32)
        logit += tl.load(bias_V + column, mask=inside, other=0.0)
        error = (tl.exp(logit - log_total) * factor - tl.where(column == target, 1.0, 0.0)) * counts
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
    V = len(bias_V)
    block = min(BLOCK, triton.next_power_of_2(V))
    constant = loss_N if log_z is None else log_z  # not read where it is none
    tensors = logit_NV, bias_V, target_N, valid_N, loss_N, excess_N, constant, float(penalty), logit_NV.stride(0)
    _loss_and_gradient[(len(logit_NV),)](*tensors, PENALISED=log_z is not None, V=V, BLOCK=block, num_warps=8)
    return loss_N, excess_N
