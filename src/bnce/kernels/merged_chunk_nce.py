"""Chunk B-NCE over different words: finding them at a fixed shape, and the elementwise part in one pass.

Legend: T time steps, B streams, N = T·B positions, R positions of a block, U columns, of which the last may be unused.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _clear(scratch_V, word_N, N, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < N
    tl.store(scratch_V + tl.load(word_N + place, mask=inside, other=0), -1, mask=inside)


@triton.jit
def _claim(scratch_V, word_N, N, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < N
    tl.atomic_max(scratch_V + tl.load(word_N + place, mask=inside, other=0), place, mask=inside, sem="relaxed")


@triton.jit
def _number(scratch_V, word_N, rank_N, word_U, count_U, column_N, N, U, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < N
    word = tl.load(word_N + place, mask=inside, other=0)
    last = tl.load(scratch_V + word, mask=inside, other=0)
    column = tl.load(rank_N + last, mask=inside, other=1) - 1
    fits = inside & (column < U)
    tl.store(column_N + place, column, mask=fits)
    tl.store(word_U + column, word, mask=fits & (last == place))
    tl.atomic_add(count_U + column, 1, mask=fits, sem="relaxed")


def distinct_words(target_TB: Tensor, max_columns: int, vocab_size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Give the different words (U,), each position's column (T, B), how often each occurs (U,), and how many there are.

    U is `max_columns` whatever the data: columns beyond the last word hold some word that occurs 0 times. A word's last
    position claims it, so the answer does not depend on which thread comes first.
    """
    word_N = target_TB.reshape(-1)
    N, device = len(word_N), word_N.device
    scratch_V = torch.empty(vocab_size, dtype=torch.int32, device=device)  # read only where it was written
    # Unused columns name words that differ, so that adding nothing to their rows is nowhere a queue.
    word_U = torch.arange(max_columns, device=device) % vocab_size
    count_U = torch.zeros(max_columns, dtype=torch.int32, device=device)
    column_N = torch.zeros(N, dtype=torch.int32, device=device)
    grid = (triton.cdiv(N, BLOCK),)
    _clear[grid](scratch_V, word_N, N, BLOCK=BLOCK)
    _claim[grid](scratch_V, word_N, N, BLOCK=BLOCK)
    is_last_N = scratch_V.index_select(0, word_N) == torch.arange(N, dtype=torch.int32, device=device)
    rank_N = torch.cumsum(is_last_N, 0, dtype=torch.int32)
    _number[grid](scratch_V, word_N, rank_N, word_U, count_U, column_N, N, max_columns, BLOCK=BLOCK)
    return word_U, column_N.reshape(target_TB.shape), count_U, rank_N[-1]


@triton.jit
def _loss_and_gradient(
    product_RU,
    offset_U,
    count_U,
    column_TB,
    loss_R,
    begin,
    T,
    B,
    U: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = product_RU + tl.program_id(0).to(tl.int64) * U
    position = begin + tl.program_id(0)
    step = tl.arange(0, STEPS)
    is_step = step < T
    # What the position's own stream brought into the columns, to be taken out again; and the position's own target.
    own = tl.load(column_TB + step * B + position % B, mask=is_step, other=-1)
    own_score = tl.load(place + own, mask=is_step, other=0.0).to(tl.float32)
    own_score += tl.load(offset_U + own, mask=is_step, other=0.0)
    times = tl.sum((own[:, None] == own[None, :]).to(tl.float32), 1)
    others = tl.load(count_U + own, mask=is_step, other=0).to(tl.float32) - times
    target = tl.load(column_TB + position)
    is_target = is_step & (step == position // B)
    small = tl.exp(-tl.abs(own_score))
    own_sigma = tl.where(own_score >= 0.0, 1.0, small) / (1.0 + small)
    correction = tl.where(is_step, tl.maximum(own_score, 0.0) + tl.log(1.0 + small), 0.0)
    # softplus(−s) of the target stands where softplus(s) was taken out: s less.
    left_out = -tl.sum(correction) + tl.sum(tl.where(is_target, correction - own_score, 0.0))
    own_gradient = others * own_sigma + tl.where(own == target, own_sigma - 1.0, 0.0)
    # Every lane must have read its scores before one of them writes over them.
    tl.debug_barrier()
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, U, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < U
        score = tl.load(place + column, mask=inside, other=0.0).to(tl.float32)
        score += tl.load(offset_U + column, mask=inside, other=0.0)
        count = tl.load(count_U + column, mask=inside, other=0).to(tl.float32)
        shrunk = tl.exp(-tl.abs(score))
        total += count * (tl.maximum(score, 0.0) + tl.log(1.0 + shrunk))
        sigma = tl.where(score >= 0.0, 1.0, shrunk) / (1.0 + shrunk)
        tl.store(place + column, (count * sigma).to(product_RU.dtype.element_ty), mask=inside)
    tl.store(loss_R + tl.program_id(0), tl.sum(total) + left_out)
    tl.debug_barrier()
    # Equal words of the stream write equal values to one place.
    tl.store(place + own, own_gradient.to(product_RU.dtype.element_ty), mask=is_step)


def loss_and_gradient_(product_RU: Tensor, offset_U: Tensor, count_U: Tensor, column_TB: Tensor, begin: int) -> Tensor:
    """Compute the loss of the positions from `begin` on; in the products' place comes the gradient of their scores."""
    (R, U), (T, B) = product_RU.shape, column_TB.shape
    loss_R = torch.empty(R, dtype=torch.float32, device=product_RU.device)
    _loss_and_gradient[(R,)](
        product_RU,
        offset_U,
        count_U,
        column_TB,
        loss_R,
        begin,
        T,
        B,
        U=U,
        STEPS=triton.next_power_of_2(T),
        BLOCK=min(BLOCK, triton.next_power_of_2(U)),
        num_warps=4,
    )
    return loss_R.sum()
