"""B-NCE's rule: from products to the losses of rows and the paper's gradient matrix G, each read and written once.

Legend: P problems (time steps), R rows (positions) of each, M columns.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels import on_its_device


@triton.jit
def _classification(
    product_PRM,
    gradient_PRM,
    offset_PM,
    target_PR,
    counts_PR,
    loss_PR,
    R,
    M,
    target_stride_P,
    target_stride_R,
    counts_stride_P,
    counts_stride_R,
    COUNTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    problem, row = number // R, number % R
    target = tl.load(target_PR + problem * target_stride_P + row * target_stride_R)
    counts = 1.0
    if COUNTED:
        counts = tl.load(counts_PR + problem * counts_stride_P + row * counts_stride_R)
    total = 0.0
    for begin in range(0, M, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = column < M
        score = tl.load(product_PRM + number * M + column, mask=inside, other=0.0).to(tl.float32)
        # A column that does not count has the score −∞, which makes both of its terms zero.
        score += tl.load(offset_PM + problem * M + column, mask=inside, other=-float("inf"))
        own = column == target
        # softplus(s) = max(s, 0) + ln(1 + exp(−|s|)), and softplus(−s) for the position's own target.
        small = tl.exp(-tl.abs(score))
        signed = tl.where(own, -score, score)
        total += tl.sum(tl.maximum(signed, 0.0) + tl.log(1.0 + small))
        # σ(s) − 1 = −σ(−s) loses no digits where σ(s) is near 1.
        sigma = tl.where(signed >= 0.0, 1.0, small) / (1.0 + small)
        gradient = tl.where(counts == 1.0, tl.where(own, -sigma, sigma), 0.0)
        tl.store(gradient_PRM + number * M + column, gradient.to(gradient_PRM.dtype.element_ty), mask=inside)
    tl.store(loss_PR + number, tl.where(counts == 1.0, total, counts))


@on_its_device
def classification(block: Any) -> Tensor:
    """Turn products into G = σ(s) − I, and give the loss of each row; `block.rows` are the columns of the targets."""
    P, R, M = block.product_PRM.shape
    (target_PR,), counts_PR = block.rows, block.counts_PR
    loss_PR = torch.empty(P, R, dtype=torch.float32, device=target_PR.device)
    read_PR = target_PR if counts_PR is None else counts_PR  # any pointer will do where none is read
    _classification[(P * R,)](
        block.product_PRM,
        block.gradient_PRM,
        block.offset_PM,
        target_PR,
        read_PR,
        loss_PR,
        R,
        M,
        *target_PR.stride(),
        *read_PR.stride(),
        COUNTED=counts_PR is not None,
        BLOCK=min(1024, triton.next_power_of_2(M)),
    )
    return loss_PR
