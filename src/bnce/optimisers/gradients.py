"""One step's gradients: equal rows are added up before a norm or a square is taken of them, then all are clipped.

Legend: V rows of the longest table, N gathered rows, D columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bnce import kernels, rows
from bnce.errors import UserError

Rows = tuple[Tensor, Tensor]  # row numbers (N,) and their gradients (N, …)

_MERGED = "_bnce_is_merged"


@dataclass(frozen=True)
class Gradients:
    """One step's gradients."""

    rows: dict[str, Rows]  # of tables of which a step touches only some rows
    dense: dict[str, Tensor]  # of other tables, every row's
    body: Tensor  # laid end to end

    @cached_property
    def norm(self) -> Tensor:
        """The norm over all parameters; equal rows must be merged first, otherwise it is wrong."""
        parts = [self.body, *(grad for _, grad in self.rows.values()), *self.dense.values()]
        return total_norm(parts)


def merge_rows(words_N: Tensor, values_ND: Tensor, num_rows: int, *, deterministic: bool = False) -> Rows:
    """Add up the gradients of equal rows, in float32 or wider.

    A CPU gives the different rows alone. A GPU keeps the shape: other places hold zeros. It adds in no fixed order,
    unless asked to be deterministic: then PyTorch sorts first.
    """
    if not deterministic and kernels.usable(values_ND):
        from bnce.kernels.rows import merge

        return merge(words_N, values_ND, num_rows)
    if not words_N.is_cuda:
        return rows.merge(words_N, values_ND)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(before or deterministic)
    try:
        return rows.merge(words_N, values_ND, len(words_N))
    finally:
        torch.use_deterministic_algorithms(before)


def merged_rows(grad: Tensor, *, deterministic: bool = False) -> Rows:
    """Add up the gradients of equal rows of a sparse gradient, unless that was done."""
    # Nothing was written to it since it was merged: a backward pass adds its own rows in place, also to one of zeros.
    if getattr(grad, _MERGED, None) == grad._version:
        return rows.row_gradients(grad)
    return merge_rows(*rows.row_gradients(grad), len(grad), deterministic=deterministic)


def merged_gradient(shape: Sequence[int], merged: Rows, dtype: torch.dtype) -> Tensor:
    """Make a sparse gradient of merged rows, marked so that nobody merges it again."""
    words_N, values_ND = merged
    return mark_merged(rows.table_gradient(shape, words_N, values_ND.to(dtype)))


def mark_merged(grad: Tensor) -> Tensor:
    """Say of a sparse gradient, as it now is, that it has no row twice, or zeros the second time."""
    setattr(grad, _MERGED, grad._version)
    return grad


def total_norm(parts: Sequence[Tensor]) -> Tensor:
    """Compute the norm over all numbers of all parts."""
    if kernels.usable(parts[0]):
        from bnce.kernels.elementwise import total_norm as fast

        return fast(parts)
    norm: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in parts]))
    return norm


def clip_factor(norm: Tensor, max_norm: float) -> Tensor:
    """Compute what gradients of this norm are multiplied by."""
    if kernels.usable(norm):
        from bnce.kernels.elementwise import clip_factor as fast

        return fast(norm, max_norm)
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    *,
    deterministic: bool = False,
) -> Tensor:
    """Scale gradients so that their norm is at most `max_norm`, as `torch.nn.utils.clip_grad_norm_`; return the norm.

    Equal rows of sparse gradients are first added up: without that, the norm would depend on how often a row occurs in
    the batch. They are merged in place, and `RowwiseAdagrad` and `RowwiseAdam` do not merge them again. A parameter
    that is given twice, such as a tied table, counts once. `norm_type` must be 2. `error_if_nonfinite` raises
    an error if the norm is NaN or infinite; for this the CPU waits for the GPU.
    """
    if norm_type != 2:
        raise UserError(f"norm_type is {norm_type!r}: only 2, the Euclidean norm, is there. Leave it out.")
    given = [parameters] if isinstance(parameters, Tensor) else list(dict.fromkeys(parameters))
    values, merged = [], []
    for parameter in given:
        if (grad := parameter.grad) is None:
            continue
        if grad.is_sparse:
            grad = merged_gradient(grad.shape, merged_rows(grad, deterministic=deterministic), grad.dtype)
            parameter.grad = grad
            merged.append(grad)
        values.append(grad._values() if grad.is_sparse else grad)
    # A few launches for many parameters, which may lie on several devices; `get_total_norm` is of PyTorch 2.6.
    norms = [norm.to(values[0].device) for norm in torch._foreach_norm(values)] if values else [torch.zeros(())]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    if error_if_nonfinite and not norm.isfinite():
        raise RuntimeError(f"The norm of the gradients is non-finite ({norm:g}): they cannot be clipped.")
    factor = clip_factor(norm, float(max_norm))
    for value in values:
        value.mul_(factor.to(value.device, value.dtype))
    for grad in merged:
        mark_merged(grad)
    return norm
