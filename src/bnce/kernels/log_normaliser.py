"""The log normaliser of many positions: ln Σ_v exp(h·w_v + c_v), logits visited once.

Legend: N positions, D hidden, E = 3 D and padding, V words or those of a block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels import on_its_device

BLOCK = 4096

# One block of logits: 2^27 numbers are 512 MB.
BLOCK_POSITIONS = 8192
BLOCK_WORDS = 16384


@triton.jit
def _log_sum_exp(logit_NV, bias_V, out_N, V: tl.constexpr, BLOCK: tl.constexpr):
    position = tl.program_id(0).to(tl.int64)
    # Kept lane by lane until the end. A lane starts below any logit, but not at minus infinity: that has no difference.
    highest = tl.full((BLOCK,), -3.0e38, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < V
        logit = tl.load(logit_NV + position * V + column, mask=inside, other=0.0).to(tl.float32)
        logit += tl.load(bias_V + column, mask=inside, other=0.0)
        logit = tl.where(inside, logit, -3.0e38)
        higher = tl.maximum(highest, logit)
        total = total * tl.exp(highest - higher) + tl.where(inside, tl.exp(logit - higher), 0.0)
        highest = higher
    top = tl.max(highest)
    tl.store(out_N + position, top + tl.log(tl.sum(total * tl.exp(highest - top))))


def log_sum_exp(logit_NV: Tensor, bias_V: Tensor) -> Tensor:
    """Compute ln Σ_v exp(logit + bias) of each row (N,), in float32."""
    N, V = logit_NV.shape
    out_N = torch.empty(N, dtype=torch.float32, device=logit_NV.device)
    block = min(BLOCK, triton.next_power_of_2(V))
    _log_sum_exp[(N,)](logit_NV, bias_V, out_N, V=V, BLOCK=block, num_warps=8)
    return out_N


@on_its_device
def log_normaliser(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor) -> Tensor:
    """Compute ln Σ_v exp(h·w_v + c_v) of each position (N,), to about the accuracy of float32 products.

    A float32 number is the sum of two of bf16 to 16 of its 24 bits, so h·w is three products of narrow numbers: they
    are done as one, three times as wide, on tensor cores, several times faster than float32 does it.
    """
    total_N: Tensor | None = None
    high_ND, low_ND = _halves(hidden_ND.float())
    hidden_NE = _beside([high_ND, low_ND, high_ND])
    for begin in range(0, len(weight_VD), BLOCK_WORDS):
        block = slice(begin, begin + BLOCK_WORDS)
        high_VD, low_VD = _halves(weight_VD[block])
        weight_VE = _beside([high_VD, high_VD, low_VD])
        parts = [
            log_sum_exp(torch.mm(rows, weight_VE.t(), out_dtype=torch.float32), bias_V[block])
            for rows in hidden_NE.split(BLOCK_POSITIONS)
        ]
        part_N = torch.cat(parts)
        total_N = part_N if total_N is None else torch.logaddexp(total_N, part_N)
    assert total_N is not None
    return total_N


def _halves(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Split numbers into what bf16 holds of them and what it holds of the rest."""
    high = rows.to(torch.bfloat16)
    return high, (rows - high.float()).to(torch.bfloat16)


def _beside(parts: list[Tensor]) -> Tensor:
    """Put parts side by side, with columns of zeros up to a width that tensor cores like."""
    return torch.nn.functional.pad(torch.cat(parts, 1), (0, -sum(part.shape[1] for part in parts) % 8))
