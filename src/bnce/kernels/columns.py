"""The columns that positions are scored against: which words they are in a time step, and their rows of the tables.

Also what other kernels share: the logistic function, and rows with columns of ones or zeros beside them.

Each is one pass that does all it can on its way. In a loop that starts kernels one by one, every small operation costs
the host as much as a large one.

Legend: P problems (T time steps, or 1), M columns of each, W columns with padding, B streams, K drawn words, D hidden,
E = D padded, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels import on_its_device

ROWS = 8  # columns that one program reads the rows of
BLOCK = 256


@triton.jit
def softplus(score):
    """Compute ln(1 + exp(score))."""
    return tl.maximum(score, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(score)))


@triton.jit
def sigmoid(score):
    """Compute 1 / (1 + exp(−score))."""
    small = tl.exp(-tl.abs(score))
    return tl.where(score >= 0.0, 1.0, small) / (1.0 + small)


@triton.jit
def _widen(row_ND, wide_NE, row_stride, column_stride, value, N, D, E, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    place = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    for first in range(0, E, WIDTH):
        unit = (first + tl.arange(0, WIDTH))[None, :]
        source = row_ND + place * row_stride + unit * column_stride
        row = tl.load(source, mask=(place < N) & (unit < D), other=0.0).to(tl.float32)
        row = tl.where(unit == D, value, row)
        tl.store(wide_NE + place * E + unit, row.to(wide_NE.dtype.element_ty), mask=(place < N) & (unit < E))


@on_its_device
def widen(row_ND: Tensor, width: int, dtype: torch.dtype, value: float = 1.0) -> Tensor:
    """Cast rows and add columns: the first holds `value`, the rest zeros."""
    return widen_into(torch.empty(len(row_ND), width, dtype=dtype, device=row_ND.device), row_ND, value)


def widen_into(wide_NE: Tensor, row_ND: Tensor, value: float = 0.0) -> Tensor:
    """Do the same into rows that are there, each right after the one before."""
    (N, D), width = row_ND.shape, wide_NE.shape[1]
    _widen[(triton.cdiv(N, ROWS),)](
        row_ND,
        wide_NE,
        row_ND.stride(0),
        row_ND.stride(1),
        value,
        N,
        D,
        width,
        WIDTH=min(256, triton.next_power_of_2(width)),
        ROWS=ROWS,
    )
    return wide_NE


@triton.jit
def _gather(
    word_PM,
    shift_PM,
    weight_VD,
    bias_V,
    log_z,
    offset_PW,
    row_PWE,
    num_places,
    M,
    W,
    row_stride,
    column_stride,
    D: tl.constexpr,
    E: tl.constexpr,
    NORMALISED: tl.constexpr,
    SHIFTED: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    problem, column, written = place // W, place % W, place < num_places
    inside = written & (column < M)
    source = problem * M + column
    word = tl.load(word_PM + source, mask=inside, other=0)
    offset = tl.load(bias_V + word, mask=inside, other=0.0).to(tl.float32)
    if NORMALISED:
        offset -= tl.load(log_z).to(tl.float32)
    if SHIFTED:
        offset += tl.load(shift_PM + source, mask=inside, other=0.0).to(tl.float32)
    tl.store(offset_PW + place, tl.where(inside, offset, -float("inf")), mask=written)
    for first in range(0, E, WIDTH):
        unit = (first + tl.arange(0, WIDTH))[None, :]
        at = weight_VD + word[:, None] * row_stride + unit * column_stride
        row = tl.load(at, mask=inside[:, None] & (unit < D), other=0.0).to(row_PWE.dtype.element_ty)
        tl.store(row_PWE + place[:, None] * E + unit, row, mask=written[:, None] & (unit < E))


@on_its_device
def gather(
    word_PM: Tensor,
    shift_PM: Tensor | None,
    weight_VD: Tensor,
    bias_V: Tensor,
    log_z: Tensor | None,
    dtype: torch.dtype,
    *,
    width: int,
    num_columns: int,
) -> tuple[Tensor, Tensor]:
    """Give offsets c − ln Z + shift (P, W) in float32, and output rows (P, W, E) with columns of zeros up to `width`.

    Columns from M to `num_columns` are padding: their offset is −∞ and their rows are zeros.
    """
    (P, M), D, device = word_PM.shape, weight_VD.shape[1], word_PM.device
    offset_PW = torch.empty(P, num_columns, dtype=torch.float32, device=device)
    row_PWE = torch.empty(P, num_columns, width, dtype=dtype, device=device)
    _gather[(triton.cdiv(P * num_columns, ROWS),)](
        word_PM.contiguous(),
        bias_V if shift_PM is None else shift_PM.contiguous(),  # any pointer will do where none is read
        weight_VD,
        bias_V,
        bias_V if log_z is None else log_z,
        offset_PW,
        row_PWE,
        P * num_columns,
        M,
        num_columns,
        *weight_VD.stride(),
        D=D,
        E=width,
        NORMALISED=log_z is not None,
        SHIFTED=shift_PM is not None,
        WIDTH=min(256, triton.next_power_of_2(width)),
        ROWS=ROWS,
    )
    return offset_PW, row_PWE


@triton.jit
def _step_columns(
    target_TB,
    valid_TB,
    drawn_TK,
    log_noise_V,
    log_drawn_V,
    word_TM,
    shift_TM,
    counts_TB,
    B,
    K,
    V,
    COUNTED: tl.constexpr,
    MIXED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    step, M = tl.program_id(0).to(tl.int64), B + K
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_target = column < B
    is_drawn = (column >= B) & (column < M)
    valid, num_valid = is_target, B
    if COUNTED:
        count = tl.zeros((BLOCK,), dtype=tl.int32)
        for first in range(0, B, BLOCK):
            stream = first + tl.arange(0, BLOCK)
            count += (tl.load(valid_TB + step * B + stream, mask=stream < B, other=0) != 0).to(tl.int32)
        num_valid = tl.sum(count)
        valid = is_target & (tl.load(valid_TB + step * B + column, mask=is_target, other=0) != 0)
    num_noise = num_valid - 1 + K
    valid = valid & (num_noise > 0)
    word = tl.load(target_TB + step * B + column, mask=is_target, other=0)
    word = tl.where(is_drawn, tl.load(drawn_TK + step * K + column - B, mask=is_drawn, other=0), word)
    is_word = (word >= 0) & (word < V)
    tl.store(counts_TB + step * B + column, tl.where(valid & (is_word == 0), float("nan"), valid), mask=is_target)
    # A position that does not count is no noise to others either. Drawn words always are.
    counts = is_drawn | (valid & is_word)
    word = tl.where(counts, word, 0)
    log_noise = tl.load(log_noise_V + word).to(tl.float32)
    if MIXED:
        # m · p_n(w) = (m − K)·u(w) + K·q(w), in logarithms.
        num_batch = num_noise - K
        of_batch = log_noise + tl.log(tl.maximum(num_batch, 1).to(tl.float32))
        of_batch = tl.where(num_batch > 0, of_batch, -float("inf"))
        of_drawn = tl.load(log_drawn_V + word).to(tl.float32) + tl.log(K.to(tl.float32))
        top = tl.maximum(of_batch, of_drawn)
        log_noise = top + tl.log(tl.exp(of_batch - top) + tl.exp(of_drawn - top))
    else:
        log_noise += tl.log(tl.maximum(num_noise, 1).to(tl.float32))
    place = step * M + column
    tl.store(word_TM + place, word, mask=column < M)
    tl.store(shift_TM + place, tl.where(counts, -log_noise, -float("inf")), mask=column < M)


@on_its_device
def step_columns(
    target_TB: Tensor,
    valid_TB: Tensor | None,
    drawn_TK: Tensor | None,
    log_noise_V: Tensor,
    log_drawn_V: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the words of each step's columns (T, M), their shifts −ln(m · p_n), and which positions count (T, B).

    A position counts 1, or 0 where it is not valid or finds no noise: then its word is 0 and its shift −∞. It counts
    NaN where its target is no word. `log_drawn_V` is the noise of the drawn words where it is another.
    """
    (T, B), device = target_TB.shape, target_TB.device
    K = 0 if drawn_TK is None else drawn_TK.shape[1]
    target_TB = target_TB.contiguous()
    word_TM = torch.empty(T, B + K, dtype=torch.int64, device=device)
    shift_TM = torch.empty(T, B + K, dtype=torch.float32, device=device)
    counts_TB = torch.empty(T, B, dtype=torch.float32, device=device)
    _step_columns[(T, triton.cdiv(B + K, BLOCK))](
        target_TB,
        target_TB if valid_TB is None else valid_TB.contiguous().view(torch.int8),
        target_TB if drawn_TK is None else drawn_TK.contiguous(),  # any pointer will do where none is read
        log_noise_V,
        log_noise_V if log_drawn_V is None else log_drawn_V,
        word_TM,
        shift_TM,
        counts_TB,
        B,
        K,
        len(log_noise_V),
        COUNTED=valid_TB is not None,
        MIXED=log_drawn_V is not None,
        BLOCK=BLOCK,
    )
    return word_TM, shift_TM, counts_TB
