"""A step's words get numbers in small tables, without sorting and at fixed shapes.

Every word is written to a scratch table with its own place as the value; whichever write wins, one place of each word
finds itself there, and takes the next free number of the word's owner. Which number that is depends on who comes first.

Legend: M words with repetitions, R owners of rows, C rows of one owner at most, N = R·C numbers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels.scratch import scratch

BLOCK = 512


@triton.jit
def _claim(scratch_V, words_M, row_N, word_N, count_R, M, N, R, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words_M + place, mask=place < M, other=0)
    tl.store(scratch_V + word, place, mask=place < M)
    tl.store(row_N + place, 0, mask=place < N)
    tl.store(word_N + place, 0, mask=place < N)
    tl.store(count_R + place, 0, mask=place < R)


@triton.jit
def _number(
    scratch_V, words_M, position_V, row_N, word_N, count_R, M, C, rows_each, PLACED: tl.constexpr, BLOCK: tl.constexpr
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words_M + place, mask=place < M, other=0)
    # Who won reads its place until it writes the number over it; to all others both mean that they lost.
    has_won = (tl.load(scratch_V + word, mask=place < M, other=-1, cache_modifier=".cg") == place) & (place < M)
    position = word
    if PLACED:
        position = tl.load(position_V + word, mask=has_won, other=0)
    owner = position // rows_each
    nth = tl.atomic_add(count_R + owner, 1, mask=has_won, sem="relaxed")
    fits = has_won & (nth < C)
    number = (owner * C + nth).to(tl.int32)
    tl.store(row_N + number, (position - owner * rows_each).to(tl.int32), mask=fits)
    tl.store(word_N + number, word, mask=fits)
    tl.store(scratch_V + word, tl.where(fits, -2 - number, -2), mask=has_won)


@triton.jit
def _look_up(scratch_V, words_M, place_M, count_R, most, M, R, OWNERS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words_M + place, mask=place < M, other=0)
    number = -2 - tl.load(scratch_V + word, mask=place < M, other=-2)
    tl.store(place_M + place, number.to(tl.int64), mask=place < M)
    if tl.program_id(0) == 0:
        owner = tl.arange(0, OWNERS)
        asked = tl.max(tl.load(count_R + owner, mask=owner < R, other=0)).to(tl.int64)
        tl.store(most, tl.maximum(tl.load(most), asked))


def number(
    words_M: Tensor, position_V: Tensor | None, vocab_size: int, rows_each: int, R: int, C: int, most: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Give each number its owner's row (N,) and its word (N,), and each word its number (M,).

    Numbers that are not used have row 0 and word 0, and so have words for which there is no room. `most` is raised to
    the number of different words of one owner. `position_V` is a word's place in the order that owners are ranges of.
    """
    M, N, device = len(words_M), R * C, words_M.device
    scratch_V = scratch(vocab_size, device)
    row_N = torch.empty(N, dtype=torch.int32, device=device)
    word_N = torch.empty(N, dtype=torch.int64, device=device)
    count_R = torch.empty(R, dtype=torch.int32, device=device)
    place_M = torch.empty(M, dtype=torch.int64, device=device)
    _claim[(triton.cdiv(max(M, N, R), BLOCK),)](scratch_V, words_M, row_N, word_N, count_R, M, N, R, BLOCK=BLOCK)
    grid = (triton.cdiv(M, BLOCK),)
    _number[grid](
        scratch_V,
        words_M,
        words_M if position_V is None else position_V,
        row_N,
        word_N,
        count_R,
        M,
        C,
        rows_each,
        PLACED=position_V is not None,
        BLOCK=BLOCK,
    )
    _look_up[grid](scratch_V, words_M, place_M, count_R, most, M, R, OWNERS=triton.next_power_of_2(R), BLOCK=BLOCK)
    return row_N, word_N, place_M
