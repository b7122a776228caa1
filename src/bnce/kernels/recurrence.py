"""LSTM and RNN over a chunk of time steps, for a GPU whose launches are captured in a graph.

A step is one matrix product and one small kernel. The products with the input and those for the weights' gradients do
not depend on the step before, so they are done for all steps at once. Sizes are padded inside as tensor cores like it.
Where `hopper.persistent` can run and is faster, all steps are one launch.

A stream whose state is reset before a step multiplies it by zero there: `keep` is 0 at resets and 1 elsewhere. Without
resets nothing of this is computed.

Legend: T time steps, S = T + 1, B streams, E input, H hidden, G = 4·H gates in PyTorch's order (input, forget, cell,
output); in one launch all gates of a unit stand together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from bnce.kernels import on_its_device
from bnce.kernels.columns import widen_into
from bnce.kernels.hopper import persistent
from bnce.kernels.recurrence_sizes import Sizes
from bnce.machine.precision import product_dtype

BLOCK = 1024


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@triton.jit
def _lstm_forward(
    gate_BG, cell_before_BH, cell_BH, hidden_BH, kept_BH, keep_2B, B, H, size, RESETS: tl.constexpr, BLOCK: tl.constexpr
):
    """Turn the gates' sums into their values, in place, and into the next cell and hidden state.

    With resets, `kept_BH` gets what the next step is to see of the hidden state.
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    stream, unit = place // H, place % H
    gates = gate_BG + stream * 4 * H + unit
    enter = _sigmoid(tl.load(gates, mask=inside, other=0.0).to(tl.float32))
    keep = _sigmoid(tl.load(gates + H, mask=inside, other=0.0).to(tl.float32))
    new = _tanh(tl.load(gates + 2 * H, mask=inside, other=0.0).to(tl.float32))
    leave = _sigmoid(tl.load(gates + 3 * H, mask=inside, other=0.0).to(tl.float32))
    cell_before = tl.load(cell_before_BH + place, mask=inside, other=0.0)
    if RESETS:
        cell_before *= tl.load(keep_2B + stream, mask=inside, other=0.0).to(tl.float32)
    cell = keep * cell_before + enter * new
    tl.store(gates, enter.to(gate_BG.dtype.element_ty), mask=inside)
    tl.store(gates + H, keep.to(gate_BG.dtype.element_ty), mask=inside)
    tl.store(gates + 2 * H, new.to(gate_BG.dtype.element_ty), mask=inside)
    tl.store(gates + 3 * H, leave.to(gate_BG.dtype.element_ty), mask=inside)
    tl.store(cell_BH + place, cell, mask=inside)
    hidden = leave * _tanh(cell)
    tl.store(hidden_BH + place, hidden.to(hidden_BH.dtype.element_ty), mask=inside)
    if RESETS:
        hidden *= tl.load(keep_2B + B + stream, mask=inside, other=0.0).to(tl.float32)
        tl.store(kept_BH + place, hidden.to(kept_BH.dtype.element_ty), mask=inside)


@triton.jit
def _lstm_backward(
    gate_BG,
    cell_before_BH,
    cell_BH,
    hidden_grad_BH,
    cell_grad_BH,
    next_grad_BH,
    keep_2B,
    B,
    H,
    size,
    RESETS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Turn the gates' values into the gradients of their sums, in place; carry the cell's gradient one step back.

    With resets, `next_grad_BH` is what the step after this one has for the hidden state; without, it is added already.
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    stream, unit = place // H, place % H
    gates = gate_BG + stream * 4 * H + unit
    enter = tl.load(gates, mask=inside, other=0.0).to(tl.float32)
    keep = tl.load(gates + H, mask=inside, other=0.0).to(tl.float32)
    new = tl.load(gates + 2 * H, mask=inside, other=0.0).to(tl.float32)
    leave = tl.load(gates + 3 * H, mask=inside, other=0.0).to(tl.float32)
    cell_before = tl.load(cell_before_BH + place, mask=inside, other=0.0)
    squashed = _tanh(tl.load(cell_BH + place, mask=inside, other=0.0))
    hidden_grad = tl.load(hidden_grad_BH + place, mask=inside, other=0.0).to(tl.float32)
    cell_grad = tl.load(cell_grad_BH + place, mask=inside, other=0.0)
    if RESETS:
        kept = tl.load(keep_2B + stream, mask=inside, other=0.0).to(tl.float32)
        kept_next = tl.load(keep_2B + B + stream, mask=inside, other=0.0).to(tl.float32)
        cell_before *= kept
        hidden_grad += kept_next * tl.load(next_grad_BH + place, mask=inside, other=0.0).to(tl.float32)
    cell_grad += hidden_grad * leave * (1.0 - squashed * squashed)
    enter_grad = cell_grad * new * enter * (1.0 - enter)
    keep_grad = cell_grad * cell_before * keep * (1.0 - keep)
    new_grad = cell_grad * enter * (1.0 - new * new)
    leave_grad = hidden_grad * squashed * leave * (1.0 - leave)
    tl.store(gates, enter_grad.to(gate_BG.dtype.element_ty), mask=inside)
    tl.store(gates + H, keep_grad.to(gate_BG.dtype.element_ty), mask=inside)
    tl.store(gates + 2 * H, new_grad.to(gate_BG.dtype.element_ty), mask=inside)
    tl.store(gates + 3 * H, leave_grad.to(gate_BG.dtype.element_ty), mask=inside)
    cell_before_grad = cell_grad * keep
    if RESETS:
        cell_before_grad *= kept
    tl.store(cell_grad_BH + place, cell_before_grad, mask=inside)


def _lstm_steps(
    gate_TBG: Tensor,
    weight_GH: Tensor,
    hidden_SBH: Tensor,
    before_SBH: Tensor,
    cell_SBH: Tensor,
    keep_SB: Tensor | None,
) -> None:
    """Turn the gates' sums into their values, in place, and fill the states after each step."""
    T, B, H = hidden_SBH[1:].shape
    grid = (triton.cdiv(B * H, BLOCK),)
    for t in range(T):
        gate_TBG[t].addmm_(before_SBH[t], weight_GH.t())
        _lstm_forward[grid](
            gate_TBG[t],
            cell_SBH[t],
            cell_SBH[t + 1],
            hidden_SBH[t + 1],
            before_SBH[t + 1],
            cell_SBH if keep_SB is None else keep_SB[t : t + 2],
            B,
            H,
            B * H,
            RESETS=keep_SB is not None,
            BLOCK=BLOCK,
        )


def _lstm_steps_back(
    gate_TBG: Tensor, weight_GH: Tensor, grad_TBH: Tensor, cell_SBH: Tensor, keep_SB: Tensor | None
) -> None:
    """Turn the gates' values into the gradients of their sums, in place."""
    hidden_grad_TBH = grad_TBH.to(gate_TBG.dtype, copy=True)
    cell_grad_BH = torch.zeros_like(cell_SBH[0])
    next_grad_BH = torch.zeros_like(hidden_grad_TBH[0])
    T, B, H = grad_TBH.shape
    grid = (triton.cdiv(B * H, BLOCK),)
    for t in range(T - 1, -1, -1):
        _lstm_backward[grid](
            gate_TBG[t],
            cell_SBH[t],
            cell_SBH[t + 1],
            hidden_grad_TBH[t],
            cell_grad_BH,
            next_grad_BH,
            cell_SBH if keep_SB is None else keep_SB[t : t + 2],
            B,
            H,
            B * H,
            RESETS=keep_SB is not None,
            BLOCK=BLOCK,
        )
        if t and keep_SB is None:
            hidden_grad_TBH[t - 1].addmm_(gate_TBG[t], weight_GH)
        elif t:
            torch.mm(gate_TBG[t], weight_GH, out=next_grad_BH)


def _rnn_steps(
    sum_TBH: Tensor, weight_HH: Tensor, hidden_SBH: Tensor, before_SBH: Tensor, keep_SB: Tensor | None
) -> None:
    """Fill the hidden states after each step; writes over the sums."""
    for t in range(len(sum_TBH)):
        sum_TBH[t].addmm_(before_SBH[t], weight_HH.t())
        torch.tanh(sum_TBH[t], out=hidden_SBH[t + 1])
        if keep_SB is not None:
            torch.mul(hidden_SBH[t + 1], keep_SB[t + 1].unsqueeze(1), out=before_SBH[t + 1])


def _rnn_steps_back(sum_grad_TBH: Tensor, weight_HH: Tensor, hidden_SBH: Tensor, keep_SB: Tensor | None) -> None:
    """Turn the hidden states' gradients into those of the sums, in place."""
    for t in range(len(sum_grad_TBH) - 1, -1, -1):
        torch.ops.aten.tanh_backward.grad_input(sum_grad_TBH[t], hidden_SBH[t + 1], grad_input=sum_grad_TBH[t])
        if t and keep_SB is None:
            sum_grad_TBH[t - 1].addmm_(sum_grad_TBH[t], weight_HH)
        elif t and keep_SB is not None:
            sum_grad_TBH[t - 1].addmm_(sum_grad_TBH[t] * keep_SB[t].unsqueeze(1), weight_HH)


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input_TBE: Tensor,
        hidden_BH: Tensor,
        cell_BH: Tensor,
        in_weight_GE: Tensor,
        weight_GH: Tensor,
        in_bias_G: Tensor,
        bias_G: Tensor,
        reset_TB: Tensor | None,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        T, B, _ = input_TBE.shape
        H = hidden_BH.shape[1]
        sizes = ctx.sizes = Sizes.choose("lstm", input_TBE, H, dtype, has_resets=reset_TB is not None)
        input_NE = sizes.pad_input(input_TBE, dtype)
        in_weight_GE = sizes.pad_in_weight(in_weight_GE, in_bias_G, bias_G, dtype)
        weight_GH = sizes.pad_weight(weight_GH, dtype)
        gate_TBG = torch.mm(input_NE, in_weight_GE.t()).view(T, B, -1)
        # Row 0 is the state before the chunk, so that "one step before" is a view.
        hidden_SBH = torch.empty(T + 1, B, sizes.wide_H, dtype=dtype, device=input_TBE.device)
        cell_SBH = torch.empty(T + 1, B, sizes.wide_H, dtype=torch.float32, device=input_TBE.device)
        widen_into(hidden_SBH[0], hidden_BH)
        widen_into(cell_SBH[0], cell_BH)
        keep_SB, before_SBH = sizes.keep(reset_TB, hidden_SBH)
        run = persistent.lstm_forward if sizes.in_one_launch else _lstm_steps
        run(gate_TBG, weight_GH, hidden_SBH, before_SBH, cell_SBH, keep_SB)
        ctx.save_for_backward(input_NE, in_weight_GE, weight_GH, gate_TBG, before_SBH, cell_SBH, keep_SB)
        cell_after_BH = cell_SBH[T, :, :H]
        ctx.mark_non_differentiable(cell_after_BH)
        ctx.set_materialize_grads(False)
        return hidden_SBH[1:], cell_after_BH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        input_NE, in_weight_GE, weight_GH, gate_TBG, before_SBH, cell_SBH, keep_SB = ctx.saved_tensors
        sizes = ctx.sizes
        if sizes.in_one_launch:
            grad_TBH = grads[0].to(gate_TBG.dtype).contiguous()
            persistent.lstm_backward(gate_TBG, weight_GH, grad_TBH, cell_SBH, keep_SB)
        else:
            _lstm_steps_back(gate_TBG, weight_GH, grads[0], cell_SBH, keep_SB)
        input_grad, in_weight_grad, weight_grad, bias_grad = sizes.gradients(
            gate_TBG, input_NE, before_SBH, in_weight_GE
        )
        return input_grad, None, None, in_weight_grad, weight_grad, bias_grad, bias_grad, None, None


class _Rnn(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input_TBE: Tensor,
        hidden_BH: Tensor,
        in_weight_HE: Tensor,
        weight_HH: Tensor,
        in_bias_H: Tensor,
        bias_H: Tensor,
        reset_TB: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        T, B, _ = input_TBE.shape
        H = hidden_BH.shape[1]
        sizes = ctx.sizes = Sizes.choose("rnn", input_TBE, H, dtype, has_resets=reset_TB is not None)
        input_NE = sizes.pad_input(input_TBE, dtype)
        in_weight_HE = sizes.pad_in_weight(in_weight_HE, in_bias_H, bias_H, dtype)
        weight_HH = sizes.pad_weight(weight_HH, dtype)
        sum_TBH = torch.mm(input_NE, in_weight_HE.t()).view(T, B, -1)
        hidden_SBH = torch.empty(T + 1, B, sizes.wide_H, dtype=dtype, device=input_TBE.device)
        widen_into(hidden_SBH[0], hidden_BH)
        keep_SB, before_SBH = sizes.keep(reset_TB, hidden_SBH)
        run = persistent.rnn_forward if sizes.in_one_launch else _rnn_steps
        run(sum_TBH, weight_HH, hidden_SBH, before_SBH, keep_SB)
        ctx.save_for_backward(input_NE, in_weight_HE, weight_HH, hidden_SBH, before_SBH, keep_SB)
        return hidden_SBH[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        input_NE, in_weight_HE, weight_HH, hidden_SBH, before_SBH, keep_SB = ctx.saved_tensors
        sizes = ctx.sizes
        if sizes.in_one_launch:
            grad_TBH = grads[0].to(hidden_SBH.dtype).contiguous()
            sum_grad_TBH = torch.empty_like(grad_TBH)
            persistent.rnn_backward(sum_grad_TBH, weight_HH, grad_TBH, hidden_SBH, keep_SB)
        else:
            sum_grad_TBH = grads[0].to(hidden_SBH.dtype, copy=True)
            _rnn_steps_back(sum_grad_TBH, weight_HH, hidden_SBH, keep_SB)
        input_grad, in_weight_grad, weight_grad, bias_grad = sizes.gradients(
            sum_grad_TBH, input_NE, before_SBH, in_weight_HE
        )
        return input_grad, None, in_weight_grad, weight_grad, bias_grad, bias_grad, None, None


@on_its_device
def run_layer(
    weights: Sequence[Tensor], input_TBE: Tensor, state: tuple[Tensor, ...], reset_TB: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run an LSTM, or a tanh RNN if the state (1, B, H) has one part, with products in autocast's type.

    `weights` are those of `torch.nn.LSTM`, in its order. All hidden states come with the padding they were computed
    with, columns of zeros on the right; the state after them carries no gradient. Where `reset_TB` is true, the state
    is zero before the step.
    """
    dtype, H = product_dtype(input_TBE), state[0].shape[2]
    parts = [part[0] for part in state]
    with torch.autocast(input_TBE.device.type, enabled=False):
        if len(parts) == 1:
            wide_TBH, cells = _Rnn.apply(input_TBE, *parts, *weights, reset_TB, dtype), []
        else:
            wide_TBH, *cells = _Lstm.apply(input_TBE, *parts, *weights, reset_TB, dtype)
    return wide_TBH, tuple(part.detach().unsqueeze(0) for part in (wide_TBH[-1, :, :H], *cells))
