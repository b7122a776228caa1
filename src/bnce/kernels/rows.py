"""Row merging and row-wise updates without sorting.

Every row number is written to a scratch table at its word, with its own place as the value; whichever write wins, all
occurrences of the word read the same winner, and add their gradients into the winner's row. So equal rows are merged in
two passes over N numbers and one over the gradients. Float32 additions in no fixed order differ in their last digits
from run to run; `rows.merge` is the plain twin that does not.

Legend: V rows of the table, N touched rows, D columns.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels.scratch import scratch


@triton.jit
def _claim(scratch_V, words_N, N, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words_N + place, mask=place < N, other=0)
    tl.store(scratch_V + word, place, mask=place < N)


@triton.jit
def _add_to_winner(scratch_V, words_N, values_ND, merged_ND, D: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    winner = tl.load(scratch_V + tl.load(words_N + row)).to(tl.int64)
    for begin in range(0, D, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = column < D
        value = tl.load(values_ND + row * D + column, mask=inside, other=0.0).to(tl.float32)
        tl.atomic_add(merged_ND + winner * D + column, value, mask=inside, sem="relaxed")


@triton.jit
def _sum_of_squares(row_D, scale, D: tl.constexpr, BLOCK: tl.constexpr):
    total = 0.0
    for begin in range(0, D, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        value = tl.load(row_D + column, mask=column < D, other=0.0).to(tl.float32) * scale
        total += tl.sum(value * value)
    return total


@triton.jit
def _add_multiple(to_D, from_D, factor, D: tl.constexpr, BLOCK: tl.constexpr):
    for begin in range(0, D, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = column < D
        value = tl.load(from_D + column, mask=inside, other=0.0)
        tl.store(to_D + column, tl.load(to_D + column, mask=inside, other=0.0) + factor * value, mask=inside)


@triton.jit
def _adagrad(
    table_VD,
    accumulator_V,
    words_N,
    grad_ND,
    grad_stride,
    rate,
    clip,
    epsilon,
    D: tl.constexpr,
    EVERY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    scale = tl.load(clip)
    total = _sum_of_squares(grad_ND + row * grad_stride, scale, D, BLOCK)
    # A row that lost its word holds zeros and has nothing to do.
    if total > 0.0:
        word = row if EVERY else tl.load(words_N + row).to(tl.int64)
        accumulated = tl.load(accumulator_V + word) + total / D
        tl.store(accumulator_V + word, accumulated)
        factor = -tl.load(rate) * scale / (tl.sqrt(accumulated) + epsilon)
        _add_multiple(table_VD + word * D, grad_ND + row * grad_stride, factor, D, BLOCK)


@triton.jit
def _adam(
    table_VD,
    square_V,
    last_V,
    step,
    words_N,
    grad_ND,
    grad_stride,
    rate,
    clip,
    decay,
    log2_decay,
    epsilon,
    D: tl.constexpr,
    EVERY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    scale = tl.load(clip)
    total = _sum_of_squares(grad_ND + row * grad_stride, scale, D, BLOCK)
    # A row that lost its word holds zeros and has nothing to do.
    if total > 0.0:
        word = row if EVERY else tl.load(words_N + row).to(tl.int64)
        now = tl.load(step)
        since = (now - tl.load(last_V + word)).to(tl.float32)
        square = tl.load(square_V + word) * tl.exp2(since * log2_decay) + (1.0 - decay) * total / D
        tl.store(square_V + word, square)
        tl.store(last_V + word, now.to(tl.int32))
        factor = -tl.load(rate) * scale / (tl.sqrt(square) + epsilon)
        _add_multiple(table_VD + word * D, grad_ND + row * grad_stride, factor, D, BLOCK)


def merge(words_N: Tensor, values_ND: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Add up the values of equal words: at one place of each word the sum, at its other places zeros, in float32."""
    N = len(words_N)
    merged_ND = torch.zeros(values_ND.shape, dtype=torch.float32, device=values_ND.device)
    if N == 0:  # of a batch in which nothing counts
        return words_N, merged_ND
    scratch_V = scratch(num_rows, words_N.device)
    _claim[(triton.cdiv(N, 256),)](scratch_V, words_N, N, BLOCK=256)
    D = values_ND[0].numel()
    _add_to_winner[(N,)](scratch_V, words_N, values_ND.contiguous(), merged_ND, D, BLOCK=_block(D))
    return words_N, merged_ND


def adagrad_(
    table_VD: Tensor,
    accumulator_V: Tensor,
    words_N: Tensor | None,
    grad_ND: Tensor,
    rate: Tensor,
    clip: Tensor,
    epsilon: float = 1e-8,
) -> None:
    """Clip and step the touched rows, or every row, by row-wise Adagrad, each row read and written once."""
    if len(grad_ND) == 0:
        return
    grad_ND, D = _with_whole_rows(grad_ND), grad_ND[0].numel()
    every = words_N is None
    words_N = accumulator_V if words_N is None else words_N  # any pointer will do where none is read
    tensors = table_VD, accumulator_V, words_N, grad_ND, grad_ND.stride(0), rate, clip
    _adagrad[(len(grad_ND),)](*tensors, epsilon, D, EVERY=every, BLOCK=_block(D))


def adam_(
    table_VD: Tensor,
    square_V: Tensor,
    last_V: Tensor,
    step: Tensor,
    words_N: Tensor | None,
    grad_ND: Tensor,
    rate: Tensor,
    clip: Tensor,
    decay: float,
    epsilon: float,
) -> None:
    """Clip and step the touched rows, or every row, by row-wise Adam, each row read and written once."""
    if len(grad_ND) == 0:
        return
    grad_ND, D = _with_whole_rows(grad_ND), grad_ND[0].numel()
    every = words_N is None
    words_N = last_V if words_N is None else words_N  # any pointer will do where none is read
    tensors = table_VD, square_V, last_V, step, words_N, grad_ND, grad_ND.stride(0), rate, clip
    _adam[(len(grad_ND),)](*tensors, decay, _log2(decay), epsilon, D, EVERY=every, BLOCK=_block(D))


def _with_whole_rows(grad_ND: Tensor) -> Tensor:
    """Give a gradient each row of which lies in one piece; between rows there may be others."""
    return grad_ND if grad_ND.ndim == 1 or grad_ND[0].is_contiguous() else grad_ND.contiguous()


def _block(D: int) -> int:
    return min(1024, triton.next_power_of_2(D))


def _log2(decay: float) -> float:
    return math.log2(decay) if decay > 0 else -1e9  # 2 to the power of that is 0
