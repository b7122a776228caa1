"""Add up the gradients of equal rows before a norm or a square is taken of them.

Legend: V rows of the longest table, N gathered rows, D columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnce import kernels, rows

_MERGED = "_bnce_is_merged"


def merged_rows(grad: Tensor, *, deterministic: bool = False, to_fewer: bool = False) -> tuple[Tensor, Tensor]:
    """Add up the gradients of equal rows of a sparse gradient: row numbers (N,) and sums (N, …), as `rows.merge` does.

    With `to_fewer`, N is the number of different rows on a CPU; processes that compare theirs need equal shapes. On a
    GPU they are added up in no fixed order, unless asked to be deterministic: then PyTorch sorts first.
    """
    words_N, values_ND = rows.row_gradients(grad)
    # Nothing was written to it since it was merged: a backward pass adds its own rows in place, also to one of zeros.
    if getattr(grad, _MERGED, None) == grad._version:
        return words_N, values_ND
    if not deterministic and kernels.usable(values_ND):
        from bnce.kernels.rows import merge

        return merge(words_N, values_ND, len(grad))
    if to_fewer and not grad.is_cuda:
        return rows.merge_to_fewer(words_N, values_ND)
    if not (deterministic and grad.is_cuda):
        return rows.merge(words_N, values_ND)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        return rows.merge(words_N, values_ND)
    finally:
        torch.use_deterministic_algorithms(before)


def merge_gradient(grad: Tensor, *, deterministic: bool = False, to_fewer: bool = False) -> Tensor:
    """Give the same sparse gradient with equal rows merged, and marked so that nobody merges it again."""
    words_N, values_ND = merged_rows(grad, deterministic=deterministic, to_fewer=to_fewer)
    merged = rows.table_gradient(grad.shape, words_N, values_ND.to(grad.dtype))
    return mark_merged(merged)


def mark_merged(grad: Tensor) -> Tensor:
    """Say of a sparse gradient, as it now is, that it has no row twice, or zeros the second time."""
    setattr(grad, _MERGED, grad._version)
    return grad
