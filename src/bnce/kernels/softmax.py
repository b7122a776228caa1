"""The softmax's rule: from a block of logits to the losses of rows, and the gradient in place.

Legend: R rows (positions), V columns: the vocabulary, and padding whose offset is −∞.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels import on_its_device

BLOCK = 4096


@triton.jit
def _cross_entropies(
    logit_RV,
    gradient_RV,
    offset_V,
    target_R,
    counts_R,
    loss_R,
    penalty,
    PENALISED: tl.constexpr,
    COUNTED: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits = logit_RV + row * V
    target = tl.load(target_R + row)
    counts = 1.0
    if COUNTED:
        counts = tl.load(counts_R + row)
    # First visit: the highest score and the sum, kept lane by lane until the end.
    highest = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < V
        score = tl.load(logits + column, mask=inside, other=-float("inf")).to(tl.float32)
        score += tl.load(offset_V + column, mask=inside, other=0.0)
        higher = tl.maximum(highest, score)
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(highest - safe) + tl.exp(score - safe)
        highest = higher
    top = tl.max(highest)
    log_total = top + tl.log(tl.sum(total * tl.exp(highest - top)))
    own = tl.load(logits + target).to(tl.float32) + tl.load(offset_V + target)
    loss, factor = log_total - own, 1.0
    if PENALISED:
        loss += penalty * log_total * log_total
        factor += 2.0 * penalty * log_total
    tl.store(loss_R + row, tl.where(counts == 1.0, loss, counts))
    # Every lane must have read the target's logit before one of them writes over it.
    tl.debug_barrier()
    # Second visit, out of the cache if the row is short enough.
    for first in range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < V
        score = tl.load(logits + column, mask=inside, other=0.0).to(tl.float32)
        score += tl.load(offset_V + column, mask=inside, other=0.0)
        gradient = tl.exp(score - log_total) * factor - tl.where(column == target, 1.0, 0.0)
        gradient = tl.where(counts == 1.0, gradient, 0.0)
        tl.store(gradient_RV + row * V + column, gradient.to(gradient_RV.dtype.element_ty), mask=inside)


@on_its_device
def cross_entropies(block: Any, *, penalty: float = 0.0) -> Tensor:
    """Turn logits into p·(1 + 2λ·a) − one-hot, and give the loss of each row; `block.rows` are the targets."""
    _, R, V = block.product_PRM.shape
    (target_1R,), counts_1R = block.rows, block.counts_PR
    loss_1R = torch.empty(1, R, dtype=torch.float32, device=target_1R.device)
    _cross_entropies[(R,)](
        block.product_PRM,
        block.gradient_PRM,
        block.offset_PM,
        target_1R.contiguous(),
        target_1R if counts_1R is None else counts_1R.contiguous(),  # any pointer will do where none is read
        loss_1R,
        penalty,
        PENALISED=penalty > 0,
        COUNTED=counts_1R is not None,
        V=V,
        BLOCK=min(BLOCK, triton.next_power_of_2(V)),
        num_warps=8,
    )
    return loss_1R
