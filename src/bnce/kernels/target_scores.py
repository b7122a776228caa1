"""One word's score per position, h·w + c: rows of the table are read where they are, and no copy of them is made.

Legend: N positions, D hidden, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels import on_its_device

BLOCK_N = 32


@triton.jit
def _score(
    hidden_ND,
    weight_VD,
    bias_V,
    word_N,
    score_N,
    N,
    D,
    hidden_step,
    weight_step,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    place = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = place < N
    word = tl.load(word_N + place, mask=inside, other=0).to(tl.int64)
    total = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for first in range(0, D, BLOCK_D):
        column = first + tl.arange(0, BLOCK_D)
        is_there = inside[:, None] & (column < D)[None, :]
        hidden_at = hidden_ND + place.to(tl.int64)[:, None] * hidden_step + column[None, :]
        hidden = tl.load(hidden_at, mask=is_there, other=0.0).to(tl.float32)
        weight_at = weight_VD + word[:, None] * weight_step + column[None, :]
        weight = tl.load(weight_at, mask=is_there, other=0.0).to(tl.float32)
        total += tl.sum(hidden * weight, 1)
    bias = tl.load(bias_V + word, mask=inside, other=0.0).to(tl.float32)
    tl.store(score_N + place, total + bias, mask=inside)


@on_its_device
def score_targets(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, word_N: Tensor) -> Tensor:
    """Compute the raw score h·w + c of one word for each position (N,), in float32."""
    N, D = hidden_ND.shape
    hidden_ND = hidden_ND if hidden_ND.stride(1) == 1 else hidden_ND.contiguous()
    score_N = torch.empty(N, dtype=torch.float32, device=hidden_ND.device)
    if N:
        _score[(triton.cdiv(N, BLOCK_N),)](
            hidden_ND,
            weight_VD,
            bias_V,
            word_N.contiguous(),
            score_N,
            N,
            D,
            hidden_ND.stride(0),
            weight_VD.stride(0),
            BLOCK_N=BLOCK_N,
            BLOCK_D=min(128, triton.next_power_of_2(D)),
        )
    return score_N
