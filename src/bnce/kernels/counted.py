"""Counting positions in one pass: in a foreign loop, every small operation costs the host as much as a large one.

Legend: T time steps, B streams, K drawn noise words.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_AT_ONCE = 2**14


@triton.jit
def _is_valid(target_TB, mask_TB, place, inside, ignore_index, MASKED: tl.constexpr):
    target = tl.load(target_TB + place, mask=inside, other=0)
    valid = inside & (target != ignore_index)
    if MASKED:
        valid &= tl.load(mask_TB + place, mask=inside, other=0) != 0
    return target, valid


@triton.jit
def _count_step(
    target_TB,
    mask_TB,
    found_TB,
    stream_TB,
    log_num_noise_T,
    num_positions,
    ignore_index,
    num_drawn,
    B,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    stream = tl.arange(0, BLOCK)
    inside = stream < B
    place = tl.program_id(0).to(tl.int64) * B + stream
    target, valid = _is_valid(target_TB, mask_TB, place, inside, ignore_index, MASKED)
    count = tl.sum(valid.to(tl.int32))
    num_noise = count - 1 + num_drawn
    valid &= num_noise > 0
    tl.store(found_TB + place, tl.where(valid, target, 0), mask=inside)
    tl.store(stream_TB + place, tl.where(valid, stream, -1), mask=inside)
    tl.store(log_num_noise_T + tl.program_id(0), tl.log(tl.maximum(num_noise, 1).to(tl.float32)))
    if num_noise > 0:
        tl.atomic_add(num_positions, count.to(tl.int64), sem="relaxed")


@triton.jit
def _count_streams(
    target_TB,
    mask_TB,
    found_TB,
    stream_TB,
    log_num_noise_B,
    num_positions,
    ignore_index,
    T,
    B,
    MASKED: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # A few time steps at once: one after the other, each would wait for its load.
    stream = tl.arange(0, BLOCK)[None, :]
    size = tl.zeros((1, BLOCK), dtype=tl.int32)
    for first in range(0, T, STEPS):
        step = first + tl.arange(0, STEPS)[:, None]
        inside = (step < T) & (stream < B)
        _, valid = _is_valid(target_TB, mask_TB, step * B + stream, inside, ignore_index, MASKED)
        size += tl.sum(valid.to(tl.int32), 0)[None, :]
    num_noise = tl.sum(size) - size
    tl.store(log_num_noise_B + stream, tl.log(tl.maximum(num_noise, 1).to(tl.float32)), mask=stream < B)
    tl.store(num_positions, tl.sum(tl.where(num_noise > 0, size, 0)).to(tl.int64))
    for first in range(0, T, STEPS):
        step = first + tl.arange(0, STEPS)[:, None]
        inside = (step < T) & (stream < B)
        place = step * B + stream
        target, valid = _is_valid(target_TB, mask_TB, place, inside, ignore_index, MASKED)
        valid &= num_noise > 0
        tl.store(found_TB + place, tl.where(valid, target, 0), mask=inside)
        tl.store(stream_TB + place, tl.where(valid, stream, -1), mask=inside)


def steps(target_TB: Tensor, mask_TB: Tensor | None, ignore_index: int, num_drawn: int) -> tuple[Tensor, ...]:
    """Count where a position sees the other targets of its time step, and K drawn words."""
    T, B = target_TB.shape
    target_TB, mask_TB, found = _room(target_TB, mask_TB, (T, 1))
    is_masked = mask_TB is not None
    # Without a mask any pointer will do in its place.
    _count_step[(T,)](
        target_TB,
        mask_TB if is_masked else target_TB,
        *found,
        ignore_index,
        num_drawn,
        B,
        MASKED=is_masked,
        BLOCK=triton.next_power_of_2(B),
    )
    return found


def streams(target_TB: Tensor, mask_TB: Tensor | None, ignore_index: int) -> tuple[Tensor, ...]:
    """Count where a position sees the targets of all other streams."""
    T, B = target_TB.shape
    target_TB, mask_TB, found = _room(target_TB, mask_TB, (B,))
    is_masked, block = mask_TB is not None, triton.next_power_of_2(B)
    _count_streams[(1,)](
        target_TB,
        mask_TB if is_masked else target_TB,
        *found,
        ignore_index,
        T,
        B,
        MASKED=is_masked,
        STEPS=max(1, min(triton.next_power_of_2(T), MAX_AT_ONCE // block)),
        BLOCK=block,
        num_warps=16 if block * T >= MAX_AT_ONCE // 2 else 4,
    )
    return found


def _room(
    target_TB: Tensor, mask_TB: Tensor | None, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
    target_TB = target_TB.contiguous()
    device = target_TB.device
    found = (
        torch.empty_like(target_TB),
        torch.empty(target_TB.shape, dtype=torch.int32, device=device),
        torch.empty(shape, dtype=torch.float32, device=device),
        torch.zeros((), dtype=torch.int64, device=device),
    )
    if mask_TB is not None:
        mask_TB = (
            mask_TB.contiguous().view(torch.int8) if mask_TB.dtype == torch.bool else mask_TB.ne(0).view(torch.int8)
        )
    return target_TB, mask_TB, found
