"""Chunk B-NCE over different words: finding them at a fixed shape, and the elementwise part in one pass.

Legend: T time steps, B streams, N = T·B positions, R positions of a block, U columns, of which the last may be unused.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels.scratch import scratch

BLOCK = 1024


@triton.jit
def _word(word_N, stream_N, place, N, V, MASKED: tl.constexpr):
    """Read the word of a place, or −1 where none counts and where there is no such word."""
    word = tl.load(word_N + place, mask=place < N, other=-1)
    word = tl.where(word < V, word, -1)
    if MASKED:
        word = tl.where(tl.load(stream_N + place, mask=place < N, other=-1) >= 0, word, -1)
    return word


@triton.jit
def _clear(scratch_V, word_N, stream_N, N, V, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = _word(word_N, stream_N, place, N, V, MASKED)
    tl.store(scratch_V + word, -1, mask=word >= 0)


@triton.jit
def _claim(scratch_V, word_N, stream_N, N, V, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = _word(word_N, stream_N, place, N, V, MASKED)
    tl.atomic_max(scratch_V + word, place, mask=word >= 0, sem="relaxed")


@triton.jit
def _number(
    scratch_V, word_N, stream_N, rank_N, word_U, count_U, column_N, N, U, V, MASKED: tl.constexpr, BLOCK: tl.constexpr
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = _word(word_N, stream_N, place, N, V, MASKED)
    inside = word >= 0
    last = tl.load(scratch_V + word, mask=inside, other=0)
    column = tl.load(rank_N + last, mask=inside, other=1) - 1
    fits = inside & (column < U)
    tl.store(column_N + place, column, mask=fits)
    tl.store(word_U + column, word, mask=fits & (last == place))
    tl.atomic_add(count_U + column, 1, mask=fits, sem="relaxed")


def distinct_words(
    word_TB: Tensor, stream_TB: Tensor | None, max_columns: int, vocab_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Give the different words (U,), each position's column (T, B), how often each occurs (U,), and how many there are.

    U is `max_columns` whatever the data: columns beyond the last word hold some word that occurs 0 times. A word's last
    position claims it, so the answer does not depend on which thread comes first. A position of the stream −1 does not
    count, and has the column −1.
    """
    word_N = word_TB.reshape(-1)
    N, device = len(word_N), word_N.device
    is_masked = stream_TB is not None
    stream_N = word_N if stream_TB is None else stream_TB  # any pointer will do where none is read
    scratch_V = scratch(vocab_size, device)  # read only where it was written
    # Unused columns name words that differ, so that adding nothing to their rows is nowhere a queue.
    word_U = torch.arange(max_columns, device=device) % vocab_size
    count_U = torch.zeros(max_columns, dtype=torch.int32, device=device)
    column_N = torch.full((N,), -1, dtype=torch.int32, device=device)
    grid = (triton.cdiv(N, BLOCK),)
    _clear[grid](scratch_V, word_N, stream_N, N, vocab_size, MASKED=is_masked, BLOCK=BLOCK)
    _claim[grid](scratch_V, word_N, stream_N, N, vocab_size, MASKED=is_masked, BLOCK=BLOCK)
    # A position that does not count never claims a word, whichever stands there in its place. Numbers that are no words
    # must not be looked up: a GPU would end the process.
    known_N = word_N.clamp(0, vocab_size - 1)
    is_last_N = scratch_V.index_select(0, known_N) == torch.arange(N, dtype=torch.int32, device=device)
    if stream_TB is not None:
        is_last_N &= stream_TB.reshape(-1) >= 0
    rank_N = torch.cumsum(is_last_N, 0, dtype=torch.int32)
    _number[grid](
        scratch_V,
        word_N,
        stream_N,
        rank_N,
        word_U,
        count_U,
        column_N,
        N,
        max_columns,
        vocab_size,
        MASKED=is_masked,
        BLOCK=BLOCK,
    )
    return word_U, column_N.reshape(word_TB.shape), count_U, rank_N[-1]


@triton.jit
def _loss_and_gradient(
    product_RU,
    offset_U,
    count_U,
    of_stream_LS,
    stream_N,
    target_N,
    log_num_noise_N,
    loss_R,
    begin,
    L,
    S,
    U: tl.constexpr,
    STEPS: tl.constexpr,
    DIFFERS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = product_RU + tl.program_id(0).to(tl.int64) * U
    position = begin + tl.program_id(0)
    stream = tl.load(stream_N + position)
    target = tl.load(target_N + position)
    log_num_noise = 0.0
    if DIFFERS:
        log_num_noise = tl.load(log_num_noise_N + position)
    if stream < 0 or target < 0:
        # A position that does not count; or whose target found no column, such as one that is no word.
        for first in range(0, U, BLOCK):
            column = first + tl.arange(0, BLOCK)
            tl.store(place + column, tl.zeros((BLOCK,), product_RU.dtype.element_ty), mask=column < U)
        tl.store(loss_R + tl.program_id(0), tl.where(stream < 0, 0.0, float("nan")))
    else:
        step = tl.arange(0, STEPS)
        # What the position's own stream brought into the columns, to be taken out again; its own target among them.
        own = tl.load(of_stream_LS + step * S + stream, mask=step < L, other=-1)
        is_own = own >= 0
        own_score = tl.load(place + own, mask=is_own, other=0.0).to(tl.float32) - log_num_noise
        own_score += tl.load(offset_U + own, mask=is_own, other=0.0)
        times = tl.sum((own[:, None] == own[None, :]).to(tl.float32), 1)
        others = tl.load(count_U + own, mask=is_own, other=0).to(tl.float32) - times
        target_score = tl.load(place + target).to(tl.float32) + tl.load(offset_U + target) - log_num_noise
        small = tl.exp(-tl.abs(own_score))
        own_sigma = tl.where(own_score >= 0.0, 1.0, small) / (1.0 + small)
        taken_out = tl.sum(tl.where(is_own, tl.maximum(own_score, 0.0) + tl.log(1.0 + small), 0.0))
        put_in = tl.maximum(-target_score, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(target_score)))
        own_gradient = others * own_sigma + tl.where(own == target, own_sigma - 1.0, 0.0)
        # Every lane must have read its scores before one of them writes over them.
        tl.debug_barrier()
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        for first in range(0, U, BLOCK):
            column = first + tl.arange(0, BLOCK)
            inside = column < U
            score = tl.load(place + column, mask=inside, other=0.0).to(tl.float32) - log_num_noise
            score += tl.load(offset_U + column, mask=inside, other=0.0)
            count = tl.load(count_U + column, mask=inside, other=0).to(tl.float32)
            shrunk = tl.exp(-tl.abs(score))
            total += count * (tl.maximum(score, 0.0) + tl.log(1.0 + shrunk))
            sigma = tl.where(score >= 0.0, 1.0, shrunk) / (1.0 + shrunk)
            tl.store(place + column, (count * sigma).to(product_RU.dtype.element_ty), mask=inside)
        tl.store(loss_R + tl.program_id(0), tl.sum(total) - taken_out + put_in)
        tl.debug_barrier()
        # Equal words of the stream write equal values to one place.
        tl.store(place + own, own_gradient.to(product_RU.dtype.element_ty), mask=is_own)


def loss_and_gradient_(product_RU: Tensor, offset_U: Tensor, count_U: Tensor, places: Any, begin: int) -> Tensor:
    """Compute the loss of the positions from `begin` on; in the products' place comes the gradient of their scores."""
    (R, U), (L, S) = product_RU.shape, places.of_stream.shape
    loss_R = torch.empty(R, dtype=torch.float32, device=product_RU.device)
    differs = places.log_num_noise_N is not None
    _loss_and_gradient[(R,)](
        product_RU,
        offset_U,
        count_U,
        places.of_stream,
        places.stream_N,
        places.target_N,
        places.log_num_noise_N if differs else offset_U,  # any pointer will do where none is read
        loss_R,
        begin,
        L,
        S,
        U=U,
        STEPS=triton.next_power_of_2(L),
        DIFFERS=differs,
        BLOCK=min(BLOCK, triton.next_power_of_2(U)),
        num_warps=4,
    )
    return loss_R.sum()
