"""Targets that are no words, found and replaced, where a loss has no kernel that does it on its way.

Legend: N positions, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _known_words(target_N, found_N, zero, wrong, N, V, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    num_wrong = tl.zeros((BLOCK,), dtype=tl.int32)
    for first in range(0, N, BLOCK):
        inside = first + lane < N
        target = tl.load(target_N + first + lane, mask=inside, other=0)
        is_wrong = (target < 0) | (target >= V)
        num_wrong += is_wrong.to(tl.int32)
        tl.store(found_N + first + lane, tl.where(is_wrong, 0, target), mask=inside)
        tl.store(wrong + 1 + lane * 0, target.to(tl.int64), mask=is_wrong)
    tl.store(zero, tl.where(tl.sum(num_wrong) > 0, float("nan"), 0.0))


def known_words(target_TB: Tensor, vocab_size: int, wrong: Tensor | None) -> tuple[Tensor, Tensor]:
    """Put word 0 where a target is no word; beside it a zero to add to the loss, which then is not a number."""
    target_TB = target_TB.contiguous()
    found_TB = torch.empty_like(target_TB)
    zero = torch.empty((), dtype=torch.float32, device=target_TB.device)
    N = target_TB.numel()
    if wrong is None:
        wrong = torch.empty(2, dtype=torch.int64, device=target_TB.device)
    _known_words[(1,)](
        target_TB, found_TB, zero, wrong, N, vocab_size, BLOCK=min(8192, triton.next_power_of_2(N)), num_warps=8
    )
    return found_TB, zero
