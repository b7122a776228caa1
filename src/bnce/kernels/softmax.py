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
def _loss_and_gradient(logit_NV, bias_V, target_N, valid_N, loss_N, stride, V: tl.constexpr, BLOCK: tl.constexpr):
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
    own = tl.where(is_word | (counts == 0.0), own, float("nan"))
    tl.store(loss_N + position, (log_total - own) * counts)
    # Every lane must have read the target's logit before one of them writes over it.
    tl.debug_barrier()
    # Second visit, out of the cache if the row is short enough: p − one-hot in place of the logits.
    for first in range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < V
        logit = tl.load(row + column, mask=inside, other=0.0).to(tl.float32)
        logit += tl.load(bias_V + column, mask=inside, other=0.0)
        error = (tl.exp(logit - log_total) - tl.where(column == target, 1.0, 0.0)) * counts
        error = tl.where(inside, error, 0.0)  # padding beyond the last word has no gradient
        tl.store(row + column, error.to(logit_NV.dtype.element_ty), mask=column < stride)


def loss_and_gradient_(logit_NV: Tensor, bias_V: Tensor, target_N: Tensor, valid_N: Tensor) -> Tensor:
    """Compute −ln p of the targets (N,), and put the gradient with respect to the logits in their place.

    Logits may have more columns than there are biases: padding, whose gradient is zero.
    """
    N, V = len(logit_NV), len(bias_V)
    loss_N = torch.empty(N, dtype=torch.float32, device=logit_NV.device)
    block = min(BLOCK, triton.next_power_of_2(V))
    _loss_and_gradient[(N,)](
        logit_NV, bias_V, target_N, valid_N, loss_N, logit_NV.stride(0), V=V, BLOCK=block, num_warps=8
    )
    return loss_N
