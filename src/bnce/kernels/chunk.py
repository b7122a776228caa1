"""The chunk losses' rule: from a block of products to the losses of rows, and the gradients in place.

One kernel for the whole family. A part that a loss does not have is not compiled: without ranking (β = 1) every column
is visited once; else a first visit finds the logarithm of the noise's sum.

The words of a position's own stream stand beside both visits: their scores are read first, and −∞ takes their places,
so that no sum has what is to be left out of it.

Legend: R rows (positions) of a block, U columns, S streams of at most L positions.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels import on_its_device
from bnce.kernels.columns import sigmoid, softplus

BLOCK = 1024
# Below every score, and a number: with −∞, nothing less nothing would be none.
LOWEST: tl.constexpr = tl.constexpr(-1e30)


@triton.jit
def _scores(products, offset_U, count_U, own, column, stream, shift, M, U: tl.constexpr, MERGED: tl.constexpr):
    """Read the scores of some columns, and how often each is noise."""
    inside = column < M
    score = tl.load(products + column, mask=column < U, other=float("-inf")).to(tl.float32) + shift
    score += tl.load(offset_U + column, mask=column < U, other=0.0)
    count = tl.load(count_U + column, mask=inside, other=0).to(tl.float32)
    if MERGED:
        is_noise = (count > 0.0) & (score > float("-inf"))
    else:
        is_noise = (count > 0.0) & (tl.load(own + column, mask=inside, other=-1) != stream)
    return tl.where(is_noise, score, LOWEST), tl.where(is_noise, count, 0.0)


@triton.jit
def _classification_or_ranking(
    product_RU,
    gradient_RU,
    offset_U,
    shift_R,
    counts_R,
    column_R,
    stream_R,
    count_U,
    own,
    loss_R,
    beta,
    penalty,
    L,
    S,
    M,
    U: tl.constexpr,
    RANKS: tl.constexpr,
    CLASSIFIES: tl.constexpr,
    MERGED: tl.constexpr,
    SHIFTED: tl.constexpr,
    COUNTED: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    products, gradients = product_RU + row * U, gradient_RU + row * U
    target, stream = tl.load(column_R + row), tl.load(stream_R + row)
    # Columns below 0: −1 of a position that does not count, −2 of one whose word has no column.
    counts = tl.where(target >= 0, 1.0, tl.where(target == -1, 0.0, float("nan")))
    if COUNTED:
        counts = tl.where(target == -2, counts, tl.load(counts_R + row))
    if counts != 1.0:
        for first in range(0, U, BLOCK):
            column = first + tl.arange(0, BLOCK)
            tl.store(gradients + column, tl.zeros((BLOCK,), gradient_RU.dtype.element_ty), mask=column < U)
        tl.store(loss_R + row, counts)
    else:
        shift = 0.0  # where all see as many noise words, it is in the offset
        if SHIFTED:
            shift = tl.load(shift_R + row).to(tl.float32)
        target_score = tl.load(products + target).to(tl.float32) + tl.load(offset_U + target) + shift
        if MERGED:
            place = tl.arange(0, STEPS)
            own_column = tl.load(own + place * S + stream, mask=place < L, other=-1)
            is_own = own_column >= 0
            own_score = tl.load(products + own_column, mask=is_own, other=0.0).to(tl.float32) + shift
            own_score += tl.load(offset_U + own_column, mask=is_own, other=0.0)
            # A word that stands several times in the stream is here as often: each brings its part.
            times = tl.sum((own_column[:, None] == own_column[None, :]).to(tl.float32), 1)
            others = tl.load(count_U + own_column, mask=is_own, other=0).to(tl.float32) - times
            share = tl.where(is_own, others / times, 0.0)
            # Every lane must have read its scores before one of them writes over them.
            tl.debug_barrier()
            tl.store(products + own_column, tl.full((STEPS,), float("-inf"), product_RU.dtype.element_ty), mask=is_own)
        tl.debug_barrier()
        loss, target_gradient = 0.0, 0.0
        estimate, pull = 0.0, 0.0
        if RANKS:
            most = tl.full((BLOCK,), LOWEST, dtype=tl.float32)
            total = tl.zeros((BLOCK,), dtype=tl.float32)
            for first in range(0, U, BLOCK):
                column = first + tl.arange(0, BLOCK)
                score, count = _scores(products, offset_U, count_U, own, column, stream, shift, M, U, MERGED)
                larger = tl.maximum(most, score)
                total = total * tl.exp(most - larger) + count * tl.exp(score - larger)
                most = larger
            largest = tl.max(most)
            if MERGED:
                own_most = tl.where(share > 0.0, own_score, LOWEST)
                largest = tl.maximum(largest, tl.max(own_most))
            sum_all = tl.sum(total * tl.exp(most - largest))
            if MERGED:
                sum_all += tl.sum(share * tl.exp(own_most - largest))
            estimate = largest + tl.log(sum_all)
            push = (1.0 - beta) * sigmoid(estimate - target_score)
            pull = push + (1.0 - beta) * 2.0 * penalty * estimate
            loss = (1.0 - beta) * (softplus(estimate - target_score) + penalty * estimate * estimate)
            target_gradient = -push
        if CLASSIFIES:
            loss += beta * softplus(-target_score)
            target_gradient -= beta * sigmoid(-target_score)
        losses = tl.zeros((BLOCK,), dtype=tl.float32)
        for first in range(0, U, BLOCK):
            column = first + tl.arange(0, BLOCK)
            score, count = _scores(products, offset_U, count_U, own, column, stream, shift, M, U, MERGED)
            gradient = tl.zeros((BLOCK,), dtype=tl.float32)
            if RANKS:
                gradient += pull * count * tl.exp(tl.where(count > 0.0, score - estimate, 0.0))
            if CLASSIFIES:
                small = tl.exp(-tl.abs(score))
                losses += count * (tl.maximum(score, 0.0) + tl.log(1.0 + small))
                gradient += beta * count * tl.where(score >= 0.0, 1.0, small) / (1.0 + small)
            if not MERGED:
                gradient += tl.where(column == target, target_gradient, 0.0)
            tl.store(gradients + column, gradient.to(gradient_RU.dtype.element_ty), mask=column < U)
        if CLASSIFIES:
            loss += beta * tl.sum(losses)
        if MERGED:
            own_gradient = tl.where(own_column == target, target_gradient, 0.0)
            if RANKS:
                own_gradient += tl.where(others > 0.0, others * pull * tl.exp(own_most - estimate), 0.0)
            if CLASSIFIES:
                loss += beta * tl.sum(share * softplus(own_score))
                own_gradient += beta * others * sigmoid(own_score)
            tl.debug_barrier()
            # Equal words of the stream write equal values to one place.
            tl.store(gradients + own_column, own_gradient.to(gradient_RU.dtype.element_ty), mask=is_own)
        tl.store(loss_R + row, loss)


@on_its_device
def classification_or_ranking(
    block: Any, count_U: Tensor, column_TB: Tensor | None, stream_TB: Tensor, *, beta: float, penalty: float
) -> Tensor:
    """Turn products into gradients of the scores, and give the loss of each row.

    `block.rows` are the columns of the targets (1, R), or −1 and −2 as `distinct_words` gives them, and the rows'
    streams, and where these see unequal noise −ln m. `column_TB` are the columns of all positions, whose streams are
    then the columns of the chunk; None: every position has a column of its own, and `stream_TB` are the streams.
    """
    _, R, U = block.product_PRM.shape
    column_1R, stream_1R, *shifts = block.rows
    counts_1R, is_merged = block.counts_PR, column_TB is not None
    own = stream_TB.flatten() if column_TB is None else column_TB.contiguous()
    L, S = stream_TB.shape if is_merged else (1, 1)
    loss_1R = torch.empty(1, R, dtype=torch.float32, device=count_U.device)
    _classification_or_ranking[(R,)](
        block.product_PRM,
        block.gradient_PRM,
        block.offset_PM,
        shifts[0].contiguous() if shifts else loss_1R,  # any pointer will do where none is read
        loss_1R if counts_1R is None else counts_1R.contiguous(),
        column_1R.contiguous(),
        stream_1R.contiguous(),
        count_U,
        own,
        loss_1R,
        beta,
        penalty,
        L,
        S,
        len(count_U),
        U=U,
        RANKS=beta < 1.0,
        CLASSIFIES=beta > 0.0,
        MERGED=is_merged,
        SHIFTED=bool(shifts),
        COUNTED=counts_1R is not None,
        STEPS=triton.next_power_of_2(L),
        BLOCK=min(BLOCK, triton.next_power_of_2(U)),
        num_warps=4,
    )
    return loss_1R
