"""Adam over one flat buffer, and the norm and clip factor of a step's gradients: few launches, in a fixed order.

A body's parameters are few, so what counts is how little is launched.

Legend: N numbers of a part, P sums of squares, one for each piece of a part.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels import on_its_device

BLOCK = 1024  # of Adam, and of the sums of squares
PIECE = 8192  # numbers whose squares one program adds up


@triton.jit
def _adam(
    parameter,
    grad,
    mean,
    square,
    count,
    rate,
    clip,
    size,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    number = tl.load(count)
    clipped = tl.load(grad + place, mask=inside, other=0.0) * tl.load(clip)
    first = tl.load(mean + place, mask=inside, other=0.0) * BETA1 + clipped * (1.0 - BETA1)
    second = tl.load(square + place, mask=inside, other=0.0) * BETA2 + clipped * clipped * (1.0 - BETA2)
    # 1 − β^n, with β^n = exp(n · ln β).
    first_total = 1.0 - tl.exp(number * tl.log(BETA1 + 0.0 * number))
    second_total = 1.0 - tl.exp(number * tl.log(BETA2 + 0.0 * number))
    step = tl.load(rate) * (first / first_total) / (tl.sqrt(second / second_total) + 1e-8)
    tl.store(mean + place, first, mask=inside)
    tl.store(square + place, second, mask=inside)
    tl.store(parameter + place, tl.load(parameter + place, mask=inside, other=0.0) - step, mask=inside)


@on_its_device
def adam_(
    parameter: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    count: Tensor,
    rate: Tensor,
    clip: Tensor,
    betas: tuple[float, float],
) -> None:
    """Clip and step flat parameters by Adam; `count` is the number of this step, from 1."""
    size = parameter.numel()
    grid = (triton.cdiv(size, BLOCK),)
    _adam[grid](parameter, grad, mean, square, count, rate, clip, size, BETA1=betas[0], BETA2=betas[1], BLOCK=BLOCK)


@triton.jit
def _squares(part_N, square_P, size, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(part_N + place, mask=place < size, other=0.0).to(tl.float32)
    tl.store(square_P + tl.program_id(0), tl.sum(value * value))


@triton.jit
def _root_of_sum(square_P, norm, size, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, size, BLOCK):
        total += tl.load(square_P + first + lane, mask=first + lane < size, other=0.0)
    tl.store(norm, tl.sqrt(tl.sum(total)))


@on_its_device
def total_norm(parts: Sequence[Tensor]) -> Tensor:
    """Compute the norm over all numbers of all parts."""
    counts = [triton.cdiv(part.numel(), PIECE) for part in parts]
    square_P = torch.empty(sum(counts), dtype=torch.float32, device=parts[0].device)
    norm = torch.empty((), dtype=torch.float32, device=parts[0].device)
    for part, count, square in zip(parts, counts, square_P.split(counts), strict=True):
        if count:
            _squares[(count,)](part.contiguous(), square, part.numel(), BLOCK=PIECE, num_warps=8)
    _root_of_sum[(1,)](square_P, norm, len(square_P), BLOCK=BLOCK)
    return norm


@triton.jit
def _clip_factor(norm, factor, max_norm):
    share = max_norm / (tl.load(norm) + 1e-6)
    # What is not a number stays so, which a minimum would hide.
    tl.store(factor, tl.where(share > 1.0, 1.0, share))


@on_its_device
def clip_factor(norm: Tensor, max_norm: float) -> Tensor:
    """Compute what gradients of this norm are multiplied by."""
    factor = torch.empty_like(norm)
    _clip_factor[(1,)](norm, factor, max_norm)
    return factor
