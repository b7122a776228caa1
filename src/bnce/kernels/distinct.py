"""The different words of a chunk, found at a fixed shape, so that a step can be captured; and memory to find them in.

Every word is written to a table at its number, with its place in the chunk as the value; the last place wins.

Legend: T time steps, B streams, N = T·B positions, U columns, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels import on_its_device

BLOCK = 1024

# Whoever uses it is done before the next begins. Smaller ones are kept, because a captured graph may write to them.
_SCRATCH: dict[torch.device, list[Tensor]] = {}


def scratch(num_words: int, device: torch.device) -> Tensor:
    """Give an int32 number per word on a device, with whatever is in them: made once and used again."""
    made = _SCRATCH.setdefault(device, [])
    if not made or len(made[-1]) < num_words:
        made.append(torch.zeros(num_words, dtype=torch.int32, device=device))
    return made[-1]


@triton.jit
def _word(target_N, valid_N, place, N, V, MASKED: tl.constexpr):
    """Read the word of a place, −1 where none counts, and −2 where it is no word."""
    counts = place < N
    target = tl.load(target_N + place, mask=counts, other=0)
    if MASKED:
        counts &= tl.load(valid_N + place, mask=counts, other=0) != 0
    return tl.where(counts, tl.where((target >= 0) & (target < V), target, -2), -1)


@triton.jit
def _prepare(scratch_V, target_N, valid_N, word_U, count_U, N, U, V, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = _word(target_N, valid_N, place, N, V, MASKED)
    tl.store(scratch_V + word, -1, mask=word >= 0)
    # Unused columns name words that differ, so that adding nothing to their rows is nowhere a queue.
    tl.store(word_U + place, (place % V).to(tl.int64), mask=place < U)
    tl.store(count_U + place, 0, mask=place < U)


@triton.jit
def _claim(scratch_V, target_N, valid_N, N, V, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = _word(target_N, valid_N, place, N, V, MASKED)
    tl.atomic_max(scratch_V + word, place, mask=word >= 0, sem="relaxed")


@triton.jit
def _number(
    scratch_V, target_N, valid_N, word_U, count_U, column_N, N, U, V, MASKED: tl.constexpr, BLOCK: tl.constexpr
):
    # One program: columns are numbered in the order of their words' last places, whichever thread comes first.
    lane = tl.arange(0, BLOCK)
    num_words = 0
    for first in range(0, N, BLOCK):
        place = first + lane
        word = _word(target_N, valid_N, place, N, V, MASKED)
        is_last = tl.load(scratch_V + word, mask=word >= 0, other=-1, cache_modifier=".cg") == place
        column = num_words + tl.cumsum(is_last.to(tl.int32), 0) - 1
        num_words += tl.sum(is_last.to(tl.int32))
        # Every lane must have read before one of them writes the word's column over its last place.
        tl.debug_barrier()
        tl.store(scratch_V + word, -2 - column, mask=is_last)
    tl.debug_barrier()
    for first in range(0, N, BLOCK):
        place = first + lane
        word = _word(target_N, valid_N, place, N, V, MASKED)
        column = -2 - tl.load(scratch_V + word, mask=word >= 0, other=0, cache_modifier=".cg")
        fits = (word >= 0) & (column < U)
        tl.store(column_N + place, tl.where(fits, column, tl.where(word == -1, -1, -2)), mask=place < N)
        tl.store(word_U + column, word.to(tl.int64), mask=fits)  # equal words write equal values
        tl.atomic_add(count_U + column, 1, mask=fits, sem="relaxed")


@on_its_device
def distinct_words(
    target_TB: Tensor, max_columns: int, vocab_size: int, valid_TB: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the different words (U,), each position's column (T, B), and how often each word occurs (U,).

    U is `max_columns` whatever the data: columns beyond the last word hold some word that occurs 0 times. A position
    that does not count has the column −1, one whose word has no column −2: there are more words than columns, or it is
    no word.
    """
    N, device = target_TB.numel(), target_TB.device
    target_TB = target_TB.contiguous()
    is_masked = valid_TB is not None
    valid = target_TB if valid_TB is None else valid_TB.contiguous().view(torch.int8)  # or any pointer, never read
    scratch_V = scratch(vocab_size, device)  # read only where it was written
    word_U = torch.empty(max_columns, dtype=torch.int64, device=device)
    count_U = torch.empty(max_columns, dtype=torch.int32, device=device)
    column_TB = torch.empty(target_TB.shape, dtype=torch.int32, device=device)
    sizes = N, max_columns, vocab_size
    _prepare[(triton.cdiv(max(N, max_columns), BLOCK),)](
        scratch_V, target_TB, valid, word_U, count_U, *sizes, MASKED=is_masked, BLOCK=BLOCK
    )
    _claim[(triton.cdiv(N, BLOCK),)](scratch_V, target_TB, valid, N, vocab_size, MASKED=is_masked, BLOCK=BLOCK)
    block = min(8192, triton.next_power_of_2(N))
    _number[(1,)](
        scratch_V,
        target_TB,
        valid,
        word_U,
        count_U,
        column_TB,
        *sizes,
        MASKED=is_masked,
        BLOCK=block,
        num_warps=16 if block > 4096 else 4,
    )
    return word_U, column_TB, count_U
