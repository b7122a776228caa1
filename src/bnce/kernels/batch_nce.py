"""The elementwise part of B-NCE in one pass: from products to the loss and the paper's gradient matrix G.

Legend: T time steps, B streams, M columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _loss_and_gradient(
    product_TBM,
    offset_TM,
    stream_TB,
    loss_TB,
    gradient_TBM,
    B,
    M: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    position = tl.program_id(0).to(tl.int64)
    step, stream = position // B, position % B
    total = 0.0
    for begin in range(0, M, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = column < M
        score = tl.load(product_TBM + position * M + column, mask=inside, other=0.0).to(tl.float32)
        score += tl.load(offset_TM + step * M + column, mask=inside, other=0.0)
        own = column == stream
        counts = inside
        if MASKED:
            # Columns beyond the batch are drawn words, which always count.
            is_target = column < B
            counts &= tl.load(stream_TB + step * B + column, mask=inside & is_target, other=0) >= 0
            counts &= tl.load(stream_TB + position) >= 0
        # softplus(s) = max(s, 0) + ln(1 + exp(−|s|)), and softplus(−s) for the position's own target.
        small = tl.exp(-tl.abs(score))
        signed = tl.where(own, -score, score)
        loss = tl.maximum(signed, 0.0) + tl.log(1.0 + small)
        total += tl.sum(tl.where(counts, loss, 0.0))
        sigma = tl.where(score >= 0.0, 1.0, small) / (1.0 + small)
        gradient = tl.where(counts, sigma - tl.where(own, 1.0, 0.0), 0.0)
        tl.store(gradient_TBM + position * M + column, gradient.to(gradient_TBM.dtype.element_ty), mask=inside)
    tl.store(loss_TB + position, total)


def loss_and_gradient(
    product_TBM: Tensor, offset_TM: Tensor, stream_TB: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute the summed loss and G = σ(s) − I in `dtype`, for s = product + offset."""
    T, B, M = product_TBM.shape
    loss_TB = torch.empty(T, B, dtype=torch.float32, device=product_TBM.device)
    gradient_TBM = torch.empty(T, B, M, dtype=dtype, device=product_TBM.device)
    is_masked = stream_TB is not None
    # Where all positions count, any pointer will do in place of their streams.
    _loss_and_gradient[(T * B,)](
        product_TBM,
        offset_TM.contiguous(),
        stream_TB if is_masked else loss_TB,
        loss_TB,
        gradient_TBM,
        B,
        M,
        MASKED=is_masked,
        BLOCK=min(1024, triton.next_power_of_2(M)),
    )
    return loss_TB.sum(), gradient_TBM
