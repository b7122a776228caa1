"""What the losses' kernels have in common: the logistic function, output rows of scored words, the end of their sums.

Each is one pass that does all it can on its way. In a loop that starts kernels one by one, every small operation costs
the host as much as a large one.

Legend: T time steps, B streams, M columns of a step (B targets, then drawn words), N positions, D hidden, E = D padded,
V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 8  # columns of one program, which counts their time step once


@triton.jit
def is_valid(target, mask_TB, place, inside, ignore_index, MASKED: tl.constexpr):
    """Say which targets count, of those that are inside."""
    valid = inside & (target != ignore_index)
    if MASKED:
        valid &= tl.load(mask_TB + place, mask=inside, other=0) != 0
    return valid


@triton.jit(do_not_specialize=("num_noise", "num_drawn"))
def _columns(
    word_TM,
    mask_TB,
    weight_VD,
    bias_V,
    log_z,
    log_noise_V,
    log_drawn_V,
    found_TM,
    offset_TM,
    row_TME,
    count_T,
    wrong,
    ignore_index,
    num_noise,
    num_drawn,
    B,
    M,
    room,
    V,
    row_stride,
    column_stride,
    D: tl.constexpr,
    E: tl.constexpr,
    CHECKED: tl.constexpr,
    COUNTED: tl.constexpr,
    MASKED: tl.constexpr,
    MIXED: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    num_blocks = tl.cdiv(room, ROWS)
    step, block = (tl.program_id(0) // num_blocks).to(tl.int64), tl.program_id(0) % num_blocks
    column = block * ROWS + tl.arange(0, ROWS)
    inside, written = column < M, column < room
    place = step * room + column
    # Padding names words of its step again: a gradient must not name others, be it with zeros.
    word = tl.load(word_TM + step * M + column % M, mask=written, other=0)
    counts, valid = inside, column < B
    if COUNTED:
        count = tl.zeros((BLOCK,), dtype=tl.int32)
        for first in range(0, B, BLOCK):
            stream = first + tl.arange(0, BLOCK)
            target = tl.load(word_TM + step * M + stream, mask=stream < B, other=0)
            count += is_valid(target, mask_TB, step * B + stream, stream < B, ignore_index, MASKED).to(tl.int32)
        num_valid = tl.sum(count)
        num_noise = num_valid - 1 + num_drawn
        if block == 0:
            tl.store(count_T + step, tl.where(num_noise > 0, num_valid, 0))
        valid = is_valid(word, mask_TB, step * B + column, valid, ignore_index, MASKED)
        # Columns beyond the batch are drawn words, which always count.
        counts &= (valid & (num_noise > 0)) | (column >= B)
    is_word = (word >= 0) & (word < V)
    found = tl.where((counts | (column >= M)) & is_word, word, 0).to(tl.int64)
    tl.store(found_TM + place, found, mask=written)
    if CHECKED:
        tl.store(wrong + 1 + column * 0, word.to(tl.int64), mask=valid & ((word < 0) | (word >= V)))
    log_noise = tl.load(log_noise_V + found)
    if MIXED:
        # m · p_n(w) = (m − K)·u(w) + K·q(w), in logarithms.
        num_batch = num_noise - num_drawn
        of_batch = log_noise + tl.log(tl.maximum(num_batch, 1).to(tl.float32))
        of_batch = tl.where(num_batch > 0, of_batch, -float("inf"))
        of_drawn = tl.load(log_drawn_V + found) + tl.log(num_drawn.to(tl.float32))
        top = tl.maximum(of_batch, of_drawn)
        log_noise = top + tl.log(tl.exp(of_batch - top) + tl.exp(of_drawn - top))
    else:
        log_noise += tl.log(tl.maximum(num_noise, 1).to(tl.float32))
    offset = tl.load(bias_V + found).to(tl.float32) - tl.load(log_z).to(tl.float32) - log_noise
    # A target that is no word must not pass for one.
    offset = tl.where(is_word, offset, float("nan"))
    tl.store(offset_TM + place, tl.where(counts, offset, -float("inf")), mask=written)
    for first in range(0, E, WIDTH):
        unit = (first + tl.arange(0, WIDTH))[None, :]
        source = weight_VD + found[:, None] * row_stride + unit * column_stride
        row = tl.load(source, mask=inside[:, None] & (unit < D), other=0.0).to(row_TME.dtype.element_ty)
        tl.store(row_TME + place[:, None] * E + unit, row, mask=written[:, None] & (unit < E))


def columns(
    word_TM: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    log_z: Tensor,
    log_noise_V: Tensor,
    dtype: torch.dtype,
    *,
    width: int,
    num_noise: int,
    room: int | None = None,
    num_drawn: int = 0,
    log_drawn_V: Tensor | None = None,
    counted: bool = False,
    mask_TB: Tensor | None = None,
    ignore_index: int = 0,
    wrong: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Give the words (T, M), their offsets c − ln Z − ln(m · p_n), their output rows (T, M, E), and who is trained on.

    With `room` for more columns than there are words, the last have the offset −∞ and rows of zeros. `counted` counts
    the positions of each step (T,) that are trained on, and so the noise words that they see. Targets that do not count
    have the word 0 and the offset −∞: their score is noise to nobody. A number that is no word has the word 0, too, and
    an offset that is not a number; it is written to the second place of `wrong`.
    """
    T, M = word_TM.shape
    B, (V, D), device, room = M - num_drawn, weight_VD.shape, word_TM.device, room or M
    word_TM = word_TM.contiguous()
    found_TM = torch.empty(T, room, dtype=torch.int64, device=device)
    offset_TM = torch.empty(T, room, dtype=torch.float32, device=device)
    row_TME = torch.empty(T, room, width, dtype=dtype, device=device)
    count_T = torch.empty(T, dtype=torch.int32, device=device) if counted else None
    _columns[(T * triton.cdiv(room, ROWS),)](
        word_TM,
        word_TM if mask_TB is None else as_numbers(mask_TB),  # any pointer will do where none is read
        weight_VD,
        bias_V,
        log_z,
        log_noise_V,
        log_noise_V if log_drawn_V is None else log_drawn_V,
        found_TM,
        offset_TM,
        row_TME,
        offset_TM if count_T is None else count_T,
        found_TM if wrong is None else wrong,
        ignore_index,
        num_noise,
        num_drawn,
        B,
        M,
        room,
        V,
        weight_VD.stride(0),
        weight_VD.stride(1),
        D=D,
        E=width,
        CHECKED=wrong is not None,
        COUNTED=counted,
        MASKED=mask_TB is not None,
        MIXED=log_drawn_V is not None,
        BLOCK=min(1024, triton.next_power_of_2(B)),
        WIDTH=min(256, triton.next_power_of_2(width)),
        ROWS=ROWS,
    )
    return found_TM, offset_TM, row_TME, count_T


def as_numbers(mask_TB: Tensor) -> Tensor:
    """Give a mask as kernels read it."""
    return (mask_TB if mask_TB.dtype == torch.bool else mask_TB.ne(0)).contiguous().view(torch.int8)


@triton.jit
def _add_up(loss_N, count_T, total, divisor, N, T, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    losses = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, N, BLOCK):
        losses += tl.load(loss_N + first + place, mask=first + place < N, other=0.0)
    result = tl.sum(losses)
    if MEAN:
        counts = tl.zeros((BLOCK,), dtype=tl.int32)
        for first in range(0, T, BLOCK):
            counts += tl.load(count_T + first + place, mask=first + place < T, other=0)
        num_positions = tl.maximum(tl.sum(counts), 1).to(tl.float32)
        tl.store(divisor, num_positions)
        result /= num_positions
    tl.store(total, result)


def add_up(loss_N: Tensor, count_T: Tensor | None, num_counts: int = 0) -> tuple[Tensor, Tensor | None]:
    """Sum the losses; with counts give their mean, and what they were divided by: 1 where no position counts.

    `num_counts` says how many of the counts add up to the number of positions.
    """
    total = torch.empty((), dtype=torch.float32, device=loss_N.device)
    divisor = None if count_T is None else torch.empty((), dtype=torch.float32, device=loss_N.device)
    N = loss_N.numel()
    _add_up[(1,)](
        loss_N,
        loss_N if count_T is None else count_T,  # any pointer will do where none is read
        total,
        total if divisor is None else divisor,
        N,
        num_counts,
        MEAN=count_T is not None,
        BLOCK=min(8192, triton.next_power_of_2(N)),
        num_warps=8,
    )
    return total, divisor
