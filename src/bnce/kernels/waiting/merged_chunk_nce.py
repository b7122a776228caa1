"""Chunk B-NCE over different words: finding them at a fixed shape, and the elementwise part in one pass.

Legend: T time steps, B streams, N = T·B positions, R positions of a block, U columns, of which the last may be unused.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels.columns import widen
from bnce.kernels.distinct import scratch
from bnce.kernels.waiting.columns import add_up, as_numbers, columns, is_valid

__all__ = ["add_up", "columns", "distinct_words", "loss_and_gradient_", "widen"]

BLOCK = 1024
# Columns below 0: −1 of a position that does not count, −2 of one whose word has no column.


@triton.jit
def _word(target_TB, mask_TB, place, N, V, ignore_index, COUNTED: tl.constexpr, MASKED: tl.constexpr):
    """Read the word of a place, −1 where none counts, and −2 where it is no word."""
    valid = place < N
    target = tl.load(target_TB + place, mask=valid, other=0)
    if COUNTED:
        valid = is_valid(target, mask_TB, place, valid, ignore_index, MASKED)
    return tl.where(valid, tl.where((target >= 0) & (target < V), target, -2), -1)


@triton.jit
def _prepare(
    scratch_V,
    target_TB,
    mask_TB,
    word_U,
    count_U,
    sizes,
    ignore_index,
    T,
    B,
    U,
    V,
    COUNTED: tl.constexpr,
    MASKED: tl.constexpr,
    STEPS: tl.constexpr,
    STREAMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = _word(target_TB, mask_TB, place, T * B, V, ignore_index, COUNTED, MASKED)
    tl.store(scratch_V + word, -1, mask=word >= 0)
    # Unused columns name words that differ, so that adding nothing to their rows is nowhere a queue.
    tl.store(word_U + place, (place % V).to(tl.int64), mask=place < U)
    tl.store(count_U + place, 0, mask=place < U)
    if COUNTED:
        # The positions of each stream that count, a few time steps at once.
        for begin in range(tl.program_id(0) * STREAMS, B, tl.num_programs(0) * STREAMS):
            stream = (begin + tl.arange(0, STREAMS))[None, :]
            size = tl.zeros((STEPS, STREAMS), dtype=tl.int32)
            for first in range(0, T, STEPS):
                step = (first + tl.arange(0, STEPS))[:, None]
                inside = (step < T) & (stream < B)
                target = tl.load(target_TB + step * B + stream, mask=inside, other=0)
                size += is_valid(target, mask_TB, step * B + stream, inside, ignore_index, MASKED).to(tl.int32)
            stream = begin + tl.arange(0, STREAMS)
            tl.store(sizes + 2 + stream, tl.sum(size, 0), mask=stream < B)


@triton.jit
def _claim(
    scratch_V,
    target_TB,
    mask_TB,
    ignore_index,
    N,
    V,
    COUNTED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = _word(target_TB, mask_TB, place, N, V, ignore_index, COUNTED, MASKED)
    tl.atomic_max(scratch_V + word, place, mask=word >= 0, sem="relaxed")


@triton.jit
def _number(
    scratch_V,
    target_TB,
    mask_TB,
    word_U,
    count_U,
    column_N,
    sizes,
    wrong,
    ignore_index,
    N,
    B,
    U,
    V,
    CHECKED: tl.constexpr,
    COUNTED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # One program: columns are numbered in the order of their words' last places, whichever thread comes first.
    lane = tl.arange(0, BLOCK)
    if COUNTED:
        size = tl.zeros((BLOCK,), dtype=tl.int32)
        largest = tl.zeros((BLOCK,), dtype=tl.int32)
        for first in range(0, B, BLOCK):
            part = tl.load(sizes + 2 + first + lane, mask=first + lane < B, other=0)
            size += part
            largest = tl.maximum(largest, part)
        num_valid = tl.sum(size)
        # Where all that count are of one stream, none of them finds noise.
        tl.store(sizes, tl.where(tl.max(largest) < num_valid, num_valid, 0))
        tl.store(sizes + 1, num_valid)
    num_words = 0
    for first in range(0, N, BLOCK):
        place = first + lane
        word = _word(target_TB, mask_TB, place, N, V, ignore_index, COUNTED, MASKED)
        is_last = tl.load(scratch_V + word, mask=word >= 0, other=-1, cache_modifier=".cg") == place
        column = num_words + tl.cumsum(is_last.to(tl.int32), 0) - 1
        num_words += tl.sum(is_last.to(tl.int32))
        # Every lane must have read before one of them writes the word's column over its last place.
        tl.debug_barrier()
        tl.store(scratch_V + word, -2 - column, mask=is_last)
    tl.debug_barrier()
    for first in range(0, N, BLOCK):
        place = first + lane
        word = _word(target_TB, mask_TB, place, N, V, ignore_index, COUNTED, MASKED)
        column = -2 - tl.load(scratch_V + word, mask=word >= 0, other=0, cache_modifier=".cg")
        fits = (word >= 0) & (column < U)
        tl.store(column_N + place, tl.where(fits, column, tl.where(word == -1, -1, -2)), mask=place < N)
        tl.store(word_U + column, word.to(tl.int64), mask=fits)  # equal words write equal values
        tl.atomic_add(count_U + column, 1, mask=fits, sem="relaxed")
        if CHECKED:
            target = tl.load(target_TB + place, mask=place < N, other=0)
            tl.store(wrong + 1 + lane * 0, target.to(tl.int64), mask=word == -2)
    if CHECKED:  # noqa: SIM102 (known when it is compiled, unlike the number of words)
        if num_words > U:
            tl.store(wrong, num_words)


def distinct_words(
    target_TB: Tensor,
    max_columns: int,
    vocab_size: int,
    *,
    counted: bool = False,
    mask_TB: Tensor | None = None,
    ignore_index: int = 0,
    wrong: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Give the different words (U,), each position's column (T, B), and how often each word occurs (U,).

    U is `max_columns` whatever the data: columns beyond the last word hold some word that occurs 0 times. A position
    that does not count has the column −1, one whose word has no column −2: there are more words than columns, or it is
    no word. `counted` also gives numbers of positions (2 + B,): of those that find noise, of all that count, and of
    those of each stream that count. `wrong` gets the number of words where there are more than columns, and a target
    that is no word.
    """
    T, B = target_TB.shape
    N, device = T * B, target_TB.device
    target_TB = target_TB.contiguous()
    scratch_V = scratch(vocab_size, device)  # read only where it was written
    word_U = torch.empty(max_columns, dtype=torch.int64, device=device)
    count_U = torch.empty(max_columns, dtype=torch.int32, device=device)
    column_TB = torch.empty(T, B, dtype=torch.int32, device=device)
    sizes = torch.empty(2 + B, dtype=torch.int32, device=device) if counted else None
    is_masked = mask_TB is not None
    mask = target_TB if mask_TB is None else as_numbers(mask_TB)  # any pointer will do where none is read
    steps = min(64, triton.next_power_of_2(T))
    _prepare[(triton.cdiv(max(N, max_columns), BLOCK),)](
        scratch_V,
        target_TB,
        mask,
        word_U,
        count_U,
        count_U if sizes is None else sizes,
        ignore_index,
        T,
        B,
        max_columns,
        vocab_size,
        COUNTED=counted,
        MASKED=is_masked,
        STEPS=steps,
        STREAMS=64,
        BLOCK=BLOCK,
    )
    _claim[(triton.cdiv(N, BLOCK),)](
        scratch_V, target_TB, mask, ignore_index, N, vocab_size, COUNTED=counted, MASKED=is_masked, BLOCK=BLOCK
    )
    block = min(8192, triton.next_power_of_2(N))
    _number[(1,)](
        scratch_V,
        target_TB,
        mask,
        word_U,
        count_U,
        column_TB,
        count_U if sizes is None else sizes,
        word_U if wrong is None else wrong,
        ignore_index,
        N,
        B,
        max_columns,
        vocab_size,
        CHECKED=wrong is not None,
        COUNTED=counted,
        MASKED=is_masked,
        BLOCK=block,
        num_warps=16 if block > 4096 else 4,
    )
    return word_U, column_TB, count_U, sizes


@triton.jit
def _loss_and_gradient(
    product_RU,
    offset_U,
    count_U,
    column_TB,
    sizes,
    loss_N,
    begin,
    T,
    B,
    U: tl.constexpr,
    STEPS: tl.constexpr,
    COUNTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = product_RU + tl.program_id(0).to(tl.int64) * U
    position = begin + tl.program_id(0)
    stream = position % B
    target = tl.load(column_TB + position)
    num_noise = (B - 1) * T
    log_num_noise = 0.0  # where all see as many, it is in the offset
    if COUNTED:
        num_noise = tl.load(sizes + 1) - tl.load(sizes + 2 + stream)
        log_num_noise = tl.log(tl.maximum(num_noise, 1).to(tl.float32))
    if target < 0 or num_noise <= 0:
        # A position that does not count; or whose target found no column, such as one that is no word.
        for first in range(0, U, BLOCK):
            column = first + tl.arange(0, BLOCK)
            tl.store(place + column, tl.zeros((BLOCK,), product_RU.dtype.element_ty), mask=column < U)
        tl.store(loss_N + position, tl.where(target == -2, float("nan"), 0.0))
    else:
        step = tl.arange(0, STEPS)
        # What the position's own stream brought into the columns, to be taken out again; its own target among them.
        own = tl.load(column_TB + step * B + stream, mask=step < T, other=-1)
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
        tl.store(loss_N + position, tl.sum(total) - taken_out + put_in)
        tl.debug_barrier()
        # Equal words of the stream write equal values to one place.
        tl.store(place + own, own_gradient.to(product_RU.dtype.element_ty), mask=is_own)


def loss_and_gradient_(
    product_RU: Tensor,
    offset_U: Tensor,
    count_U: Tensor,
    column_TB: Tensor,
    sizes: Tensor | None,
    loss_N: Tensor,
    begin: int,
) -> None:
    """Write the loss of the positions from `begin` on; in the products' place comes the gradient of their scores."""
    (R, U), (T, B) = product_RU.shape, column_TB.shape
    _loss_and_gradient[(R,)](
        product_RU,
        offset_U,
        count_U,
        column_TB,
        count_U if sizes is None else sizes,  # any pointer will do where none is read
        loss_N,
        begin,
        T,
        B,
        U=U,
        STEPS=triton.next_power_of_2(T),
        COUNTED=sizes is not None,
        BLOCK=min(BLOCK, triton.next_power_of_2(U)),
        num_warps=4,
    )
