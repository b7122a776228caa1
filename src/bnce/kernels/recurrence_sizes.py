"""What a recurrent layer has, padded to sizes that tensor cores like, and the gradients of all steps cut back to it.

Legend: T time steps, S = T + 1, B streams, E input, H hidden, G gates: 4·H of an LSTM in PyTorch's order, H of an RNN;
in one launch all gates of a unit stand together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels.columns import widen
from bnce.kernels.hopper import persistent
from bnce.machine.precision import product_in_float32

MULTIPLE = 64  # of which tensor cores like sizes to be


@triton.jit
def _pad_rows(
    weight_GE,
    in_bias_G,
    bias_G,
    padded,
    H,
    E,
    wide_H,
    wide_E,
    GATES: tl.constexpr,
    BY_UNIT: tl.constexpr,
    BIASED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Write one padded row of the weights of a gate: those of a unit, or zeros; the bias is the column after them."""
    row = tl.program_id(0)
    if BY_UNIT:
        gate, unit = row % GATES, row // GATES
    else:
        gate, unit = row // wide_H, row % wide_H
    source = gate * H + unit
    for first in range(0, wide_E, WIDTH):
        column = first + tl.arange(0, WIDTH)
        is_unit = unit + column * 0 < H
        value = tl.load(weight_GE + source * E + column, mask=is_unit & (column < E), other=0.0)
        if BIASED:
            place, is_bias = source + column * 0, is_unit & (column == E)
            value += tl.load(in_bias_G + place, mask=is_bias, other=0.0)
            value += tl.load(bias_G + place, mask=is_bias, other=0.0)
        tl.store(padded + row * wide_E + column, value.to(padded.dtype.element_ty), mask=column < wide_E)


def _widened(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


class Sizes:
    """Pads what a network has to what tensor cores like, and back. Padding units have zero weights and stay zero."""

    def __init__(self, T: int, B: int, E: int, H: int, num_gates: int, *, in_one_launch: bool, multiple: int) -> None:
        self.T, self.B, self.E, self.H, self.num_gates = T, B, E, H, num_gates
        self.in_one_launch = in_one_launch
        # One column more than the input has, for the bias.
        self.wide_E, self.wide_H = _widened(E + 1, MULTIPLE), _widened(H, multiple)

    @classmethod
    def choose(cls, name: str, input_TBE: Tensor, H: int, dtype: torch.dtype, *, has_resets: bool) -> Sizes:
        """Decide whether all steps are one launch."""
        T, B, E = input_TBE.shape
        num_gates = {"lstm": 4, "rnn": 1}[name]
        wide_H = _widened(H, persistent.MULTIPLE)
        in_one_launch = persistent.available(input_TBE, dtype, name, wide_H, B) and persistent.prepare(
            name, wide_H, B, has_resets=has_resets
        )
        multiple = persistent.MULTIPLE if in_one_launch else MULTIPLE
        return cls(T, B, E, H, num_gates, in_one_launch=in_one_launch, multiple=multiple)

    def _gates(self, padded: Tensor) -> Tensor:
        """View the padded rows gate by gate, whichever way they are kept."""
        if self.in_one_launch:
            return padded.view(self.wide_H, self.num_gates, -1).transpose(0, 1)
        return padded.view(self.num_gates, self.wide_H, -1)

    def pad_input(self, input_TBE: Tensor, dtype: torch.dtype) -> Tensor:
        """Put a one after every input, by which the bias is multiplied."""
        return widen(input_TBE.reshape(-1, self.E), self.wide_E, dtype)

    def pad_weight(self, weight_GH: Tensor, dtype: torch.dtype) -> Tensor:
        """Pad the recurrent weights."""
        return self._pad_gates(weight_GH, self.wide_H, None, dtype)

    def pad_in_weight(self, weight_GE: Tensor, in_bias_G: Tensor, bias_G: Tensor, dtype: torch.dtype) -> Tensor:
        """Put the bias into the first column of the padding, whose input is always one."""
        return self._pad_gates(weight_GE, self.wide_E, (in_bias_G, bias_G), dtype)

    def _pad_gates(
        self, weight_GE: Tensor, width: int, biases: tuple[Tensor, Tensor] | None, dtype: torch.dtype
    ) -> Tensor:
        weight_GE = weight_GE.contiguous()
        padded = torch.empty(self.num_gates * self.wide_H, width, dtype=dtype, device=weight_GE.device)
        _pad_rows[(len(padded),)](
            weight_GE,
            *(biases or (weight_GE, weight_GE)),  # any pointer will do where none is read
            padded,
            self.H,
            weight_GE.shape[1],
            self.wide_H,
            width,
            GATES=self.num_gates,
            BY_UNIT=self.in_one_launch,
            BIASED=biases is not None,
            WIDTH=min(1024, triton.next_power_of_2(width)),
        )
        return padded

    def keep(self, reset_TB: Tensor | None, hidden_SBH: Tensor) -> tuple[Tensor | None, Tensor]:
        """Give what each step multiplies its state by, none after the last, and room for the hidden states after that.

        The first of these is filled. Without resets they are the hidden states themselves.
        """
        if reset_TB is None:
            return None, hidden_SBH
        keep_SB = torch.ones(self.T + 1, self.B, dtype=hidden_SBH.dtype, device=hidden_SBH.device)
        keep_SB[: self.T].masked_fill_(reset_TB, 0.0)
        before_SBH = torch.empty_like(hidden_SBH)
        torch.mul(hidden_SBH[0], keep_SB[0].unsqueeze(1), out=before_SBH[0])
        return keep_SB, before_SBH

    def gradients(
        self, gate_grad_TBG: Tensor, input_NE: Tensor, before_SBH: Tensor, in_weight_GE: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the gradients of input, input weight, recurrent weight and bias, for all steps at once."""
        gate_grad_NG = gate_grad_TBG.view(self.T * self.B, -1)
        before_NH = before_SBH[: self.T].view(self.T * self.B, self.wide_H)
        # Of as many columns as there are inputs, where tensor cores like their number: then nobody copies them.
        width = self.E if self.E % 8 == 0 else self.wide_E
        input_grad_NE = product_in_float32(gate_grad_NG, in_weight_GE[:, :width])[:, : self.E]
        in_weight_grad = self._gates(product_in_float32(gate_grad_NG.t(), input_NE))
        weight_grad = self._gates(product_in_float32(gate_grad_NG.t(), before_NH))
        return (
            input_grad_NE.reshape(self.T, self.B, self.E),
            in_weight_grad[:, : self.H, : self.E].reshape(-1, self.E),
            weight_grad[:, : self.H, : self.H].reshape(-1, self.H),
            in_weight_grad[:, : self.H, self.E].reshape(-1),
        )
