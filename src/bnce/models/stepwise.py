"""LSTM and RNN over a chunk of time steps, for training on a CPU: PyTorch's own layers are the plain twins.

Products with the input and those for the weights' gradients are done for all steps at once. A step is one product and
a few operations in place. All squashing is done by σ, which PyTorch computes several times as fast as tanh:
tanh(x) = 2·σ(2x) − 1. The cell gate's weights are doubled for that, so one σ covers all gates.

Products are in `dtype`: float32, or bfloat16 with everything else in float32. A stream whose state is reset before a
step multiplies it by `keep`, which is 0 there and 1 elsewhere.

Legend: T time steps, S = T + 1, B streams, N = T·B, E input, H hidden, G = 4·H gates in PyTorch's order (input, forget,
cell, output).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bnce.machine.precision import at_least_float32, product_dtype, product_in_float32


def is_for(tensor: Tensor, cell: nn.Module) -> bool:
    """Say whether this is faster than PyTorch's own layer: on a CPU, but not for LSTMs in float32, which oneDNN has."""
    if tensor.device.type != "cpu" or not torch.is_grad_enabled():
        return False
    return isinstance(cell, nn.RNN) or product_dtype(tensor) == torch.bfloat16


def lstm(
    input_TBE: Tensor,
    hidden_BH: Tensor,
    cell_BH: Tensor,
    weights: Sequence[Tensor],
    dtype: torch.dtype,
    reset_TB: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run an LSTM from a state; gives the hidden states, and the last hidden and cell state, cut from the graph."""
    hidden_TBH, cell_after_BH = _Lstm.apply(input_TBE, hidden_BH, cell_BH, *weights, reset_TB, dtype)
    return hidden_TBH, hidden_TBH[-1].detach(), cell_after_BH.detach()


def rnn(
    input_TBE: Tensor,
    hidden_BH: Tensor,
    weights: Sequence[Tensor],
    dtype: torch.dtype,
    reset_TB: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run a tanh RNN from a state; gives the hidden states, and the last one, cut from the graph."""
    hidden_TBH: Tensor = _Rnn.apply(input_TBE, hidden_BH, *weights, reset_TB, dtype)
    return hidden_TBH, hidden_TBH[-1].detach()


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
        in_weight_GE, weight_GH, bias_G = (
            _double_cell_gate(part, dtype) for part in (in_weight_GE, weight_GH, in_bias_G + bias_G)
        )
        input_NE = input_TBE.reshape(T * B, -1).to(dtype)
        sum_TBG = torch.addmm(bias_G, input_NE, in_weight_GE.t()).view(T, B, -1)
        gate_TBG = sum_TBG if sum_TBG.dtype == cell_BH.dtype else torch.empty_like(sum_TBG, dtype=cell_BH.dtype)
        states = _States(hidden_BH, T, dtype, reset_TB)
        cell_SBH = cell_BH.new_empty(T + 1, B, H)
        squashed_TBH = cell_BH.new_empty(T, B, H)
        cell_SBH[0].copy_(cell_BH)
        cells, weight_HG = cell_SBH.unbind(), weight_GH.t()
        views = zip(sum_TBG, gate_TBG, *(gates_TBH.unbind() for gates_TBH in gate_TBG.chunk(4, 2)), strict=True)
        for t, (sum_BG, gate_BG, enter, keep, new, leave) in enumerate(views):
            sum_BG.addmm_(states.before(t), weight_HG)
            if gate_TBG is not sum_TBG:
                gate_BG.copy_(sum_BG)
            gate_BG.sigmoid_()
            if states.keep_TB1 is not None:
                cells[t].mul_(states.keep_TB1[t])
            torch.mul(keep, cells[t], out=cells[t + 1])
            cells[t + 1].addcmul_(enter, new, value=2.0).sub_(enter)
            _tanh(cells[t + 1], squashed_TBH[t])
            torch.mul(leave, squashed_TBH[t], out=states.hiddens[t + 1])
        last_BH = cell_SBH[T].clone()
        ctx.save_for_backward(
            input_NE, in_weight_GE, weight_GH, gate_TBG, cell_SBH, squashed_TBH, states.before_TBH, states.keep_TB1
        )
        ctx.mark_non_differentiable(last_BH)
        return states.hidden_SBH[1:], last_BH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        input_NE, in_weight_GE, weight_GH, gate_TBG, cell_SBH, squashed_TBH, before_TBH, keep_TB1 = ctx.saved_tensors
        T, B, G = gate_TBG.shape
        narrow_TBG = gate_TBG if gate_TBG.dtype == input_NE.dtype else torch.empty_like(gate_TBG, dtype=input_NE.dtype)
        hidden_grad_BH = grads[0][T - 1].clone()
        cell_grad_BH = torch.zeros_like(cell_SBH[0])
        error_BG, through_BH = torch.empty_like(gate_TBG[0]), torch.empty_like(cell_grad_BH)
        enter_error, keep_error, new_error, leave_error = error_BG.chunk(4, 1)
        views = zip(gate_TBG, squashed_TBH, cell_SBH, *(part.unbind() for part in gate_TBG.chunk(4, 2)), strict=False)
        for t, (gate_BG, squashed_BH, cell_BH, enter, keep, new, leave) in reversed(list(enumerate(views))):
            torch.mul(hidden_grad_BH, squashed_BH, out=leave_error)
            torch.mul(hidden_grad_BH, leave, out=through_BH)
            torch.ops.aten.tanh_backward.grad_input(through_BH, squashed_BH, grad_input=through_BH)
            cell_grad_BH.add_(through_BH)
            torch.mul(cell_grad_BH, new, out=enter_error).mul_(2.0).sub_(cell_grad_BH)
            torch.mul(cell_grad_BH, cell_BH, out=keep_error)
            torch.mul(cell_grad_BH, enter, out=new_error).mul_(2.0)
            cell_grad_BH.mul_(keep)
            torch.ops.aten.sigmoid_backward.grad_input(error_BG, gate_BG, grad_input=gate_BG)
            if narrow_TBG is not gate_TBG:
                narrow_TBG[t].copy_(gate_BG)
            if t:
                if keep_TB1 is not None:
                    cell_grad_BH.mul_(keep_TB1[t])
                hidden_grad_BH = _carry_back(narrow_TBG[t], weight_GH, grads[0][t - 1], keep_TB1, t)
        parts = _gradients(gate_TBG.view(T * B, G), narrow_TBG.view(T * B, G), input_NE, before_TBH, in_weight_GE)
        input_grad_NE, *of_weights = parts
        in_weight_grad, weight_grad, bias_grad = (_double_cell_gate(part, part.dtype) for part in of_weights)
        input_grad = input_grad_NE.view(T, B, -1)
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
        in_weight_HE, weight_HH, bias_H = (part.to(dtype) for part in (in_weight_HE, weight_HH, in_bias_H + bias_H))
        input_NE = input_TBE.reshape(T * B, -1).to(dtype)
        sum_TBH = torch.addmm(bias_H, input_NE, in_weight_HE.t()).view(T, B, -1)
        states = _States(hidden_BH, T, dtype, reset_TB)
        transposed_HH = weight_HH.t()
        for t, sum_BH in enumerate(sum_TBH):
            sum_BH.addmm_(states.before(t), transposed_HH)
            _tanh(sum_BH, states.hiddens[t + 1])
        ctx.save_for_backward(input_NE, in_weight_HE, weight_HH, states.hidden_SBH, states.before_TBH, states.keep_TB1)
        return states.hidden_SBH[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        input_NE, in_weight_HE, weight_HH, hidden_SBH, before_TBH, keep_TB1 = ctx.saved_tensors
        S, B, H = hidden_SBH.shape
        N = (S - 1) * B
        error_TBH = torch.empty_like(hidden_SBH[1:])
        narrow_TBH = (
            error_TBH if error_TBH.dtype == input_NE.dtype else torch.empty_like(error_TBH, dtype=input_NE.dtype)
        )
        hidden_grad_BH = grads[0][S - 2]
        views = zip(hidden_SBH[1:], error_TBH, narrow_TBH, strict=True)
        for t, (hidden_BH, error_BH, narrow_BH) in reversed(list(enumerate(views))):
            torch.ops.aten.tanh_backward.grad_input(hidden_grad_BH, hidden_BH, grad_input=error_BH)
            if narrow_TBH is not error_TBH:
                narrow_BH.copy_(error_BH)
            if t:
                hidden_grad_BH = _carry_back(narrow_BH, weight_HH, grads[0][t - 1], keep_TB1, t)
        input_grad_NE, in_weight_grad, weight_grad, bias_grad = _gradients(
            error_TBH.view(N, H), narrow_TBH.view(N, H), input_NE, before_TBH, in_weight_HE
        )
        input_grad = input_grad_NE.view(S - 1, B, -1)
        return input_grad, None, in_weight_grad, weight_grad, bias_grad, bias_grad, None, None


class _States:
    """The hidden states of all steps, and what each step sees of the one before it, in the type of products."""

    def __init__(self, hidden_BH: Tensor, T: int, dtype: torch.dtype, reset_TB: Tensor | None) -> None:
        self.hidden_SBH = hidden_BH.new_empty(T + 1, *hidden_BH.shape)
        self.hidden_SBH[0].copy_(hidden_BH)
        self.keep_TB1: Tensor | None = None
        if reset_TB is not None:
            self.keep_TB1 = (~reset_TB).to(hidden_BH.dtype).unsqueeze(2)
        self._is_seen_whole = reset_TB is None and dtype == hidden_BH.dtype
        self.before_TBH = self.hidden_SBH[:T]
        if not self._is_seen_whole:
            self.before_TBH = torch.empty_like(self.before_TBH, dtype=dtype)
        self.hiddens, self._befores = self.hidden_SBH.unbind(), self.before_TBH.unbind()

    def before(self, t: int) -> Tensor:
        """Give what step t sees, once the step before it is done."""
        before_BH = self._befores[t]
        if not self._is_seen_whole:
            before_BH.copy_(self.hiddens[t])
            if self.keep_TB1 is not None:
                before_BH.mul_(self.keep_TB1[t])
        return before_BH


def _tanh(input_BH: Tensor, out_BH: Tensor) -> None:
    torch.mul(input_BH, 2.0, out=out_BH)
    out_BH.sigmoid_().mul_(2.0).sub_(1.0)


def _double_cell_gate(rows_G: Tensor, dtype: torch.dtype) -> Tensor:
    """Copy what has a row per gate, with the rows of the cell gate doubled."""
    doubled_G = rows_G.to(dtype, copy=True)
    doubled_G.chunk(4)[2].mul_(2.0)
    return doubled_G


def _carry_back(error_BG: Tensor, weight_GH: Tensor, grad_BH: Tensor, keep_TB1: Tensor | None, t: int) -> Tensor:
    """Compute the gradient of the hidden state before step t: what came from above, and from the step itself."""
    if keep_TB1 is None and error_BG.dtype == grad_BH.dtype:
        return torch.addmm(grad_BH, error_BG, weight_GH)
    from_step_BH = product_in_float32(error_BG, weight_GH)
    if keep_TB1 is not None:
        from_step_BH.mul_(keep_TB1[t])
    return from_step_BH.add_(grad_BH)


def _gradients(
    error_NG: Tensor, narrow_NG: Tensor, input_NE: Tensor, before_TBH: Tensor, in_weight_GE: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of input, input weight, recurrent weight and bias, for all steps at once."""
    before_NH = before_TBH.view(len(error_NG), -1)
    return (
        product_in_float32(narrow_NG, in_weight_GE),
        product_in_float32(narrow_NG.t(), input_NE),
        product_in_float32(narrow_NG.t(), before_NH),
        at_least_float32(error_NG.sum(0)),
    )
