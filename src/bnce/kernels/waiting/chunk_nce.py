"""The elementwise part of chunk B-NCE in one pass: from a block of products to its loss and gradient, in place.

Legend: R positions of a block, N positions in all, B streams.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _loss_and_gradient(
    product_RN, offset_N, stream_N, log_num_noise_N, loss_R, begin, N: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    position = begin + row
    stream = tl.load(stream_N + position)
    log_num_noise = tl.load(log_num_noise_N + position)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, N, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < N
        place = product_RN + row * N + column
        score = tl.load(place, mask=inside, other=0.0).to(tl.float32) - log_num_noise
        score += tl.load(offset_N + column, mask=inside, other=0.0)
        own = column == position
        other = tl.load(stream_N + column, mask=inside, other=-1)
        # A position that does not count has the stream −1: it is no noise, and has no loss.
        counts = (stream >= 0) & (((other != stream) & (other >= 0)) | own)
        # softplus(s) = max(s, 0) + ln(1 + exp(−|s|)), and softplus(−s) for the position's own target.
        small = tl.exp(-tl.abs(score))
        loss = tl.maximum(tl.where(own, -score, score), 0.0) + tl.log(1.0 + small)
        total += tl.where(counts, loss, 0.0)
        sigma = tl.where(score >= 0.0, 1.0, small) / (1.0 + small)
        gradient = tl.where(counts, sigma - tl.where(own, 1.0, 0.0), 0.0)
        tl.store(place, gradient.to(product_RN.dtype.element_ty), mask=inside)
    tl.store(loss_R + row, tl.sum(total))


def loss_and_gradient_(
    product_RN: Tensor, offset_N: Tensor, stream_N: Tensor, log_num_noise_N: Tensor, begin: int
) -> Tensor:
    """Compute the loss of the positions from `begin` on; in the products' place comes the gradient of their scores."""
    R, N = product_RN.shape
    loss_R = torch.empty(R, dtype=torch.float32, device=product_RN.device)
    block = min(2048, triton.next_power_of_2(N))
    _loss_and_gradient[(R,)](
        product_RN, offset_N, stream_N, log_num_noise_N, loss_R, begin, N=N, BLOCK=block, num_warps=8
    )
    return loss_R.sum()
