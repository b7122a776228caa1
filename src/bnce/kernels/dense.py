"""A dense ReLu layer whose input may be wider than its weight: the extra columns are padding and hold zeros.

Legend: N positions, W input columns with padding, D outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bnce.kernels import on_its_device
from bnce.kernels.columns import widen
from bnce.machine.precision import product_dtype, product_in_float32


class _DenseRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input_NW: Tensor, weight_DE: Tensor, bias_D: Tensor, dtype: torch.dtype) -> Tensor:
        weight_DW = widen(weight_DE, input_NW.shape[1], dtype, 0.0)
        input_NW = input_NW.to(dtype)
        # Not by the product's own kernel (`torch._addmm_activation`): cuBLAS makes zeros of what is not a number, and
        # a body that blew up would go on with a loss that is finite.
        output_ND = torch.addmm(bias_D.to(dtype), input_NW, weight_DW.t()).relu_()
        ctx.save_for_backward(input_NW, weight_DW, output_ND)
        ctx.num_columns = weight_DE.shape[1]
        return output_ND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        input_NW, weight_DW, output_ND = ctx.saved_tensors
        grad_ND = torch.ops.aten.threshold_backward(grads[0], output_ND, 0)
        # A row of ones adds up columns faster than a reduction over so tall a matrix.
        ones_1N = torch.ones(1, len(grad_ND), dtype=grad_ND.dtype, device=grad_ND.device)
        return (
            torch.mm(grad_ND, weight_DW),
            product_in_float32(grad_ND.t(), input_NW)[:, : ctx.num_columns],
            product_in_float32(ones_1N, grad_ND).squeeze(0),
            None,
        )


@on_its_device
def dense_relu(input: Tensor, weight_DE: Tensor, bias_D: Tensor) -> Tensor:
    """Compute max(0, x·W + b) with products in autocast's type."""
    dtype = product_dtype(weight_DE)
    with torch.autocast(input.device.type, enabled=False):
        output_ND: Tensor = _DenseRelu.apply(input.reshape(-1, input.shape[-1]), weight_DE, bias_D, dtype)
    return output_ND.view(*input.shape[:-1], -1)
