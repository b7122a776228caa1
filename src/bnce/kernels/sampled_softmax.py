"""Sampled softmax's rule: from a block of products to the losses of rows, and the gradients in place.

Legend: R rows (positions), C columns, the last of which may be padding with an offset of −∞, K drawn words.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels import on_its_device
from bnce.kernels.columns import sigmoid, softplus

BLOCK = 2048
LEAST = tl.constexpr(-1e30)  # stands for ln 0 where two of them would be subtracted


@triton.jit
def _scores(products, offset_C, word_K, column, target, K, REMOVES: tl.constexpr, C: tl.constexpr):
    inside = column < C
    score = tl.load(products + column, mask=inside, other=0.0).to(tl.float32)
    score += tl.load(offset_C + column, mask=inside, other=-float("inf"))
    if REMOVES:
        score = tl.where(tl.load(word_K + column, mask=column < K, other=-1) == target, -float("inf"), score)
    return score


@triton.jit
def _ranking(
    product_RC,
    gradient_RC,
    offset_C,
    own_R,
    target_R,
    word_K,
    counts_R,
    loss_R,
    K,
    REMOVES: tl.constexpr,
    COUNTED: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    products, target, counts = product_RC + row * C, -1, 1.0
    if REMOVES:
        target = tl.load(target_R + row)
    if COUNTED:
        counts = tl.load(counts_R + row)
    highest = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, C, BLOCK):
        score = _scores(products, offset_C, word_K, first + tl.arange(0, BLOCK), target, K, REMOVES, C)
        higher = tl.maximum(highest, score)
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(highest - safe) + tl.exp(score - safe)
        highest = higher
    top = tl.maximum(tl.max(highest), LEAST)
    sum_all = tl.sum(total * tl.exp(highest - top))
    log_total = top + tl.log(tl.where(sum_all > 0.0, sum_all, 1.0))  # nothing is left where it is 0
    lead = log_total - tl.load(own_R + row)
    push = tl.where(counts == 1.0, sigmoid(lead), 0.0)
    tl.store(loss_R + row, tl.where(counts == 1.0, softplus(lead), counts))
    tl.store(own_R + row, -push)
    for first in range(0, C, BLOCK):
        column = first + tl.arange(0, BLOCK)
        gradient = tl.exp(_scores(products, offset_C, word_K, column, target, K, REMOVES, C) - log_total) * push
        tl.store(gradient_RC + row * C + column, gradient.to(gradient_RC.dtype.element_ty), mask=column < C)


@on_its_device
def ranking(block: Any, *word_K: Tensor) -> Tensor:
    """Turn products and own scores into gradients, and give the loss of each row.

    `word_K` are the words of the columns where hits have no part; `block.rows` are then the words of the targets.
    """
    _, R, C = block.product_PRM.shape
    own_1R, counts_1R = block.own_PR, block.counts_PR
    loss_1R = torch.empty(1, R, dtype=torch.float32, device=own_1R.device)
    assert own_1R.is_contiguous()  # it is written to
    _ranking[(R,)](
        block.product_PRM,
        block.gradient_PRM,
        block.offset_PM,
        own_1R,
        block.rows[0].contiguous() if word_K else own_1R,  # any pointer will do where none is read
        word_K[0] if word_K else own_1R,
        own_1R if counts_1R is None else counts_1R.contiguous(),
        loss_1R,
        len(word_K[0]) if word_K else 0,
        REMOVES=bool(word_K),
        COUNTED=counts_1R is not None,
        C=C,
        BLOCK=min(BLOCK, triton.next_power_of_2(C)),
        num_warps=8,
    )
    return loss_1R
