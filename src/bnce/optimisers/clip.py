"""One step's gradients, and the factor that keeps their norm within bounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in parts]))
    return Gradients(norm, touched, dense, body)


def clip_factor(norm: Tensor, max_norm: float) -> Tensor:
    """Compute what gradients of this norm are multiplied by."""
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)
