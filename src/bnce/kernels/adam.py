"""Adam over one flat buffer in one pass: the body's parameters are few, so what counts is how little is launched."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


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
