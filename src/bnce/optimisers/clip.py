"""One step's gradients, and the factor that keeps their norm within bounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnce import kernels
from bnce.errors import UserError
from bnce.optimisers.merging import mark_merged, merge_gradient


@dataclass(frozen=True)
class Gradients:
    """One step's gradients, equal rows merged, and their norm."""

    norm: Tensor
    touched: dict[str, tuple[Tensor, Tensor]]  # table → row numbers (N,), merged gradients (N, …)
    dense: dict[str, Tensor]  # table → gradient of every row
    body: Tensor  # laid end to end


def measure(touched: dict[str, tuple[Tensor, Tensor]], dense: dict[str, Tensor], body: Tensor) -> Gradients:
    """Measure the norm over all parameters; equal rows must be merged first, otherwise the norm is wrong."""
    parts = [body, *(grad for _, grad in touched.values()), *dense.values()]
    return Gradients(total_norm(parts), touched, dense, body)


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
    foreach: bool | None = None,
    *,
    deterministic: bool = False,
) -> Tensor:
    """Scale gradients so that their norm is at most `max_norm`, as `torch.nn.utils.clip_grad_norm_`; return the norm.

    Equal rows of sparse gradients are first added up: without that, the norm would depend on how often a row occurs in
    the batch. They are merged in place, and `RowwiseAdagrad` and `RowwiseAdam` do not merge them again. A parameter
    that is given twice, such as a tied table, counts once. `norm_type` must be 2. `error_if_nonfinite` raises
    an error if the norm is NaN or infinite; for this the CPU waits for the GPU. `foreach` is PyTorch's, for the norm.
    """
    if norm_type != 2:
        raise UserError(f"norm_type is {norm_type!r}: only 2, the Euclidean norm, is there. Leave it out.")
    given = [parameters] if isinstance(parameters, Tensor) else list(dict.fromkeys(parameters))
    values, merged = [], []
    for parameter in given:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = merge_gradient(parameter.grad, deterministic=deterministic)
            merged.append(parameter.grad)
            values.append(parameter.grad._values())
        else:
            values.append(parameter.grad)
    norm = torch.nn.utils.get_total_norm(values, error_if_nonfinite=error_if_nonfinite, foreach=foreach)
    factor = clip_factor(norm, float(max_norm))
    for value in values:
        value.mul_(factor.to(value.device, value.dtype))
    for grad in merged:
        mark_merged(grad)
    return norm
