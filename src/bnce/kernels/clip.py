"""The norm of a step's gradients, and what they are multiplied by, in a few launches and in a fixed order.

Legend: N numbers of all parts, P sums of squares, one for each piece of a part.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192


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


@triton.jit
def _clip_factor(norm, factor, max_norm):
    share = max_norm / (tl.load(norm) + 1e-6)
    # What is not a number stays so, which a minimum would hide.
    tl.store(factor, tl.where(share > 1.0, 1.0, share))


def total_norm(parts: Sequence[Tensor]) -> Tensor:
    """Compute the norm over all numbers of all parts."""
    counts = [triton.cdiv(part.numel(), BLOCK) for part in parts]
    square_P = torch.empty(sum(counts), dtype=torch.float32, device=parts[0].device)
    norm = torch.empty((), dtype=torch.float32, device=parts[0].device)
    for part, count, square in zip(parts, counts, square_P.split(counts), strict=True):
        if count:
            _squares[(count,)](part.contiguous(), square, part.numel(), BLOCK=BLOCK, num_warps=8)
    _root_of_sum[(1,)](square_P, norm, len(square_P), BLOCK=1024)
    return norm


def clip_factor(norm: Tensor, max_norm: float) -> Tensor:
    """Compute what gradients of this norm are multiplied by."""
    factor = torch.empty_like(norm)
    _clip_factor[(1,)](norm, factor, max_norm)
    return factor
