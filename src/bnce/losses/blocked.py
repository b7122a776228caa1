"""A loss over the products of hidden rows and columns, a block of rows at a time, with its gradients.

All products at once would not fit into memory. So each block's products become its gradients in place, and what is kept
for the backward pass has the size of the hidden rows and of the columns.

Legend: N positions, R positions of a block, M columns, D hidden, E = D padded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bnce.losses.first_order import first_order_only
from bnce.machine.precision import product_dtype, product_in_float32, sum_dtype, widen

# Numbers in one block of scores: near the processor on a CPU, enough to fill the chip on a GPU.
MAX_SCORES = {"cpu": 2**20, "cuda": 2**25}

# What a block of products (R, M) becomes, in place: the gradient of its scores. It is told the columns' offsets, the
# scores of positions that are computed apart, and the block's first position. It gives the sum of the block's loss, and
# the gradient of those scores (R,); None: there are none.
BlockRule = Callable[[Tensor, Tensor, Tensor | None, int], tuple[Tensor, Tensor | None]]


def blocked_loss(
    hidden_ND: Tensor, weight_MD: Tensor, offset_M: Tensor, rule: BlockRule, own_N: Tensor | None = None
) -> Tensor:
    """Sum a loss over all positions; `own_N` are the scores of their own targets, where these are no columns."""
    loss: Tensor = _BlockedLoss.apply(hidden_ND, weight_MD, offset_M, own_N, rule, product_dtype(hidden_ND))
    return loss


class _BlockedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_MD: Tensor,
        offset_M: Tensor,
        own_N: Tensor | None,
        rule: BlockRule,
        dtype: torch.dtype,
    ) -> Tensor:
        N, D = hidden_ND.shape
        # Of equal size, so that the last is not a small one.
        num_blocks = max(1, -(-N * len(weight_MD) // MAX_SCORES.get(hidden_ND.device.type, 2**25)))
        num_rows = max(1, -(-N // num_blocks))
        hidden_NE, weight_ME = widen(hidden_ND, 1.0, dtype), widen(weight_MD, 0.0, dtype)
        loss = torch.zeros((), dtype=sum_dtype(dtype), device=hidden_ND.device)
        hidden_grad_NE, own_grad_N = torch.empty_like(hidden_NE), None if own_N is None else torch.empty_like(own_N)
        weight_grad_ME: Tensor | None = None
        with torch.autocast(hidden_ND.device.type, enabled=False):
            for begin in range(0, N, num_rows):
                block = slice(begin, min(begin + num_rows, N))
                gradient_RM = torch.mm(hidden_NE[block], weight_ME.t())
                part, own_grad_R = rule(gradient_RM, offset_M, own_N, begin)
                loss += part
                if own_grad_N is not None and own_grad_R is not None:
                    own_grad_N[block] = own_grad_R
                torch.mm(gradient_RM, weight_ME, out=hidden_grad_NE[block])
                part_ME = product_in_float32(gradient_RM.t(), hidden_NE[block])
                weight_grad_ME = part_ME if weight_grad_ME is None else weight_grad_ME.add_(part_ME)
        if weight_grad_ME is None:  # there are no positions
            weight_grad_ME = torch.zeros_like(weight_ME, dtype=sum_dtype(dtype))
        ctx.save_for_backward(hidden_grad_NE, weight_grad_ME, own_grad_N)
        ctx.num_columns, ctx.dtypes = D, (hidden_ND.dtype, weight_MD.dtype)
        return loss

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad_NE, weight_grad_ME, own_grad_N = ctx.saved_tensors
        D, (hidden_dtype, weight_dtype) = ctx.num_columns, ctx.dtypes
        return (
            (hidden_grad_NE[:, :D] * grads[0]).to(hidden_dtype),
            (weight_grad_ME[:, :D] * grads[0]).to(weight_dtype),
            weight_grad_ME[:, D] * grads[0],
            None if own_grad_N is None else own_grad_N * grads[0],
            None,
            None,
        )
