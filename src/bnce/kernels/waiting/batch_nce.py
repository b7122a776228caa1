"""B-NCE in few passes: the columns of each step, and from products to the loss and the paper's gradient matrix G.

Legend: T time steps, B streams, M columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels.columns import widen
from bnce.kernels.waiting.columns import add_up, columns

__all__ = ["add_up", "columns", "loss_and_gradient", "scale", "widen"]


@triton.jit
def _loss_and_gradient(product_TBM, offset_TM, loss_TB, gradient_TBM, B, M: tl.constexpr, BLOCK: tl.constexpr):
    position = tl.program_id(0).to(tl.int64)
    step, stream = position // B, position % B
    own_offset = tl.load(offset_TM + step * M + stream)
    is_trained = own_offset > -float("inf")
    total = 0.0
    for begin in range(0, M, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = column < M
        offset = tl.load(offset_TM + step * M + column, mask=inside, other=-float("inf"))
        score = tl.load(product_TBM + position * M + column, mask=inside, other=0.0).to(tl.float32)
        # A column that does not count has the score −∞, which makes both of its terms zero.
        score += tl.where(offset == offset, offset, -float("inf"))
        own = column == stream
        # softplus(s) = max(s, 0) + ln(1 + exp(−|s|)), and softplus(−s) for the position's own target.
        small = tl.exp(-tl.abs(score))
        signed = tl.where(own, -score, score)
        total += tl.sum(tl.maximum(signed, 0.0) + tl.log(1.0 + small))
        # σ(s) − 1 = −σ(−s) loses no digits where σ(s) is near 1.
        sigma = tl.where(signed >= 0.0, 1.0, small) / (1.0 + small)
        gradient = tl.where(is_trained, tl.where(own, -sigma, sigma), 0.0)
        tl.store(gradient_TBM + position * M + column, gradient.to(gradient_TBM.dtype.element_ty), mask=inside)
    # A target that is no word must not pass for one: its offset is not a number, and so is its loss.
    untrained = tl.where(own_offset == own_offset, 0.0, own_offset)
    tl.store(loss_TB + position, tl.where(is_trained, total, untrained))


def loss_and_gradient(product_TBM: Tensor, offset_TM: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute the loss of every position (T, B), and G = σ(s) − I in `dtype`, for s = product + offset.

    A position whose own offset is −∞ does not count: it has no loss and is no noise. One whose offset is not a number
    is as little noise, and its loss is not a number.
    """
    T, B, M = product_TBM.shape
    loss_TB = torch.empty(T, B, dtype=torch.float32, device=product_TBM.device)
    gradient_TBM = torch.empty(T, B, M, dtype=dtype, device=product_TBM.device)
    _loss_and_gradient[(T * B,)](
        product_TBM, offset_TM, loss_TB, gradient_TBM, B, M, BLOCK=min(1024, triton.next_power_of_2(M))
    )
    return loss_TB, gradient_TBM


@triton.jit
def _scale(gradient_TBM, factor, scaled_TBM, total_TM, B, M, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    step = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    by = tl.load(factor).to(tl.float32)
    total = tl.zeros((COLUMNS,), dtype=tl.float32)
    for first in range(0, B, ROWS):
        stream = (first + tl.arange(0, ROWS))[:, None]
        inside = (stream < B) & (column < M)[None, :]
        place = (step * B + stream) * M + column[None, :]
        value = tl.load(gradient_TBM + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(scaled_TBM + place, (value * by).to(scaled_TBM.dtype.element_ty), mask=inside)
        total += tl.sum(value, 0)
    tl.store(total_TM + step * M + column, total * by, mask=column < M)


def scale(gradient_TBM: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply G by what comes from above, and add up its columns (T, M): the paper's ΔC, Eq. (10)."""
    T, B, M = gradient_TBM.shape
    scaled_TBM = torch.empty_like(gradient_TBM)
    total_TM = torch.empty(T, M, dtype=torch.float32, device=gradient_TBM.device)
    # Narrow programs, so that a batch of the paper's sizes has two for every multiprocessor.
    _scale[(T, triton.cdiv(M, 32))](gradient_TBM, factor, scaled_TBM, total_TM, B, M, ROWS=64, COLUMNS=32)
    return scaled_TBM, total_TM
