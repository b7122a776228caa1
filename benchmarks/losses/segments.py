"""Rows that stand end to end, some for each owner: repeat what owners have, and add up in a fixed order.

A GPU's `index_add` adds in whatever order its threads come by, so that the last bits differ from run to run.

Legend: M owners, P rows, …: any further dimensions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def repeat(value_M: Tensor, owner_P: Tensor, edge_E: Tensor) -> Tensor:
    """Give every row what its owner has (P, …). Owner m has the rows from edge m up to edge m + 1."""
    repeated: Tensor = _Repeat.apply(value_M, owner_P, edge_E)
    return repeated


def add_up(value_P: Tensor, owner_P: Tensor, edge_E: Tensor) -> Tensor:
    """Add up the rows of each owner (M, …). Rows beyond the last edge must be zeros."""
    total: Tensor = _AddUp.apply(value_P, owner_P, edge_E)
    return total


def sum_segments(value_P: Tensor, owner_P: Tensor, edge_E: Tensor, total_M: Tensor | None = None) -> Tensor:
    """Add up the rows of each owner, to a total where there is one, without a gradient.

    On a GPU each sum is one thread's.
    """
    if value_P.is_cuda and not torch.compiler.is_compiling():
        sum_M = reduce_segments(value_P, edge_E)
        return sum_M if total_M is None else total_M.add_(sum_M)
    if total_M is None:
        total_M = value_P.new_zeros(len(edge_E) - 1, *value_P.shape[1:])
    return total_M.index_add_(0, owner_P, value_P)


def reduce_segments(value_P: Tensor, edge_E: Tensor) -> Tensor:
    """Add up the rows between edges, from the first to the last of each."""
    # Without the check that edges rise: the host would have to wait for it.
    return torch.segment_reduce(value_P, "sum", offsets=edge_E, axis=0, unsafe=True, initial=0.0)


class _Repeat(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value_M: Tensor, owner_P: Tensor, edge_E: Tensor) -> Tensor:
        ctx.save_for_backward(owner_P, edge_E)
        return value_M.index_select(0, owner_P)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _AddUp.apply(grads[0], *ctx.saved_tensors), None, None


class _AddUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value_P: Tensor, owner_P: Tensor, edge_E: Tensor) -> Tensor:
        ctx.save_for_backward(owner_P, edge_E)
        return sum_segments(value_P, owner_P, edge_E)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _Repeat.apply(grads[0], *ctx.saved_tensors), None, None
