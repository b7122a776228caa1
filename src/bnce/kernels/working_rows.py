"""A step's words get numbers in small tables, without sorting and at fixed shapes.

Every word is written to a scratch table with its own place as the value; whichever write wins, one place of each word
finds itself there, and takes the next free number. Which number that is depends on who comes first.

Legend: M words with repetitions, N numbers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels.distinct import scratch

BLOCK = 512


@triton.jit
def _claim(scratch_V, words_M, word_N, count, M, N, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words_M + place, mask=place < M, other=0)
    tl.store(scratch_V + word, place, mask=place < M)
    tl.store(word_N + place, 0, mask=place < N)
    tl.store(count + place, 0, mask=place < 1)


@triton.jit
def _number(scratch_V, words_M, word_N, count, M, N, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words_M + place, mask=place < M, other=0)
    # Who won reads its place until it writes the number over it; to all others both mean that they lost.
    has_won = (tl.load(scratch_V + word, mask=place < M, other=-1, cache_modifier=".cg") == place) & (place < M)
    number = tl.atomic_add(count + tl.zeros_like(place), 1, mask=has_won, sem="relaxed")
    fits = has_won & (number < N)
    tl.store(word_N + number, word, mask=fits)
    tl.store(scratch_V + word, tl.where(fits, -2 - number, -2), mask=has_won)


@triton.jit
def _look_up(scratch_V, words_M, place_M, count, most, M, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words_M + place, mask=place < M, other=0)
    number = -2 - tl.load(scratch_V + word, mask=place < M, other=-2)
    tl.store(place_M + place, number.to(tl.int64), mask=place < M)
    if tl.program_id(0) == 0:
        tl.store(most, tl.maximum(tl.load(most), tl.load(count).to(tl.int64)))


def number(words_M: Tensor, vocab_size: int, num_rows: int, most: Tensor) -> tuple[Tensor, Tensor]:
    """Give each of `num_rows` numbers its word (N,), and each word its number (M,).

    Numbers that are not used have word 0, and words for which there is no room have number 0. `most` is raised to the
    number of different words.
    """
    M, N, device = len(words_M), num_rows, words_M.device
    scratch_V = scratch(vocab_size, device)
    word_N = torch.empty(N, dtype=torch.int64, device=device)
    count = torch.empty(1, dtype=torch.int32, device=device)
    place_M = torch.empty(M, dtype=torch.int64, device=device)
    _claim[(triton.cdiv(max(M, N), BLOCK),)](scratch_V, words_M, word_N, count, M, N, BLOCK=BLOCK)
    grid = (triton.cdiv(M, BLOCK),)
    _number[grid](scratch_V, words_M, word_N, count, M, N, BLOCK=BLOCK)
    _look_up[grid](scratch_V, words_M, place_M, count, most, M, BLOCK=BLOCK)
    return word_N, place_M
