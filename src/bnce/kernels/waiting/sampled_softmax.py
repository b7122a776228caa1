"""Sampled softmax in one visit to each position's row of products: loss, and gradient in place.

Legend: R positions, C columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels.columns import sigmoid, softplus

BLOCK = 2048
LEAST = tl.constexpr(-1e30)  # stands for ln 0 where two of them would be subtracted


@triton.jit
def _scores(row, offset_C, word_C, column, target, REMOVES: tl.constexpr, C: tl.constexpr):
    inside = column < C
    score = tl.load(row + column, mask=inside, other=0.0).to(tl.float32)
    score += tl.load(offset_C + column, mask=inside, other=-float("inf"))
    if REMOVES:
        score = tl.where(tl.load(word_C + column, mask=inside, other=-1) == target, -float("inf"), score)
    return score


@triton.jit
def _log_total(row, offset_C, word_C, target, REMOVES: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    highest = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, C, BLOCK):
        score = _scores(row, offset_C, word_C, first + tl.arange(0, BLOCK), target, REMOVES, C)
        higher = tl.maximum(highest, score)
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(highest - safe) + tl.exp(score - safe)
        highest = higher
    top = tl.maximum(tl.max(highest), LEAST)
    total = tl.sum(total * tl.exp(highest - top))
    return top + tl.log(tl.where(total > 0.0, total, 1.0))  # nothing is left where it is 0


@triton.jit
def _sampled_softmax(
    product_RC,
    offset_C,
    own_R,
    word_C,
    target_R,
    valid_R,
    loss_R,
    own_grad_R,
    REMOVES: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    position = tl.program_id(0).to(tl.int64)
    row, target = product_RC + position * C, tl.load(target_R + position)
    counts = tl.load(valid_R + position).to(tl.float32)
    log_total = _log_total(row, offset_C, word_C, target, REMOVES, C, BLOCK)
    lead = log_total - tl.load(own_R + position)
    push = sigmoid(lead) * counts
    tl.store(loss_R + position, softplus(lead) * counts)
    tl.store(own_grad_R + position, -push)
    for first in range(0, C, BLOCK):
        column = first + tl.arange(0, BLOCK)
        score = _scores(row, offset_C, word_C, column, target, REMOVES, C)
        gradient = tl.exp(score - log_total) * push
        tl.store(row + column, gradient.to(product_RC.dtype.element_ty), mask=column < C)


def sampled_softmax_(
    product_RC: Tensor,
    offset_C: Tensor,
    own_R: Tensor,
    word_C: Tensor,
    target_R: Tensor,
    valid_R: Tensor,
    *,
    remove_hits: bool,
) -> tuple[Tensor, Tensor]:
    """Compute the loss of some positions (R,) and the gradient of their own scores; the products become gradients."""
    R, C = product_RC.shape
    loss_R, own_grad_R = torch.empty(2, R, dtype=torch.float32, device=product_RC.device)
    tensors = product_RC, offset_C, own_R, word_C, target_R, valid_R, loss_R, own_grad_R
    block = min(BLOCK, triton.next_power_of_2(C))
    _sampled_softmax[(R,)](*tensors, REMOVES=remove_hits, C=C, BLOCK=block, num_warps=8)
    return loss_R, own_grad_R
