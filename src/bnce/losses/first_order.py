"""Backward passes that compute gradients and nothing beyond them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bnce.errors import UserError

Backward = Callable[..., tuple[Tensor | None, ...]]


def first_order_only(backward: Backward) -> Backward:
    """Refuse `create_graph=True` at once: PyTorch would only complain later, of a tensor without a gradient."""
    once: Backward = once_differentiable(backward)

    @functools.wraps(backward)
    def refuse_or_run(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # A backward pass records itself only with create_graph. A compiler records everything, and refuses by itself.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise UserError(
                "The loss has no second derivatives, so create_graph=True cannot be used with it: leave it out, or use "
                "the loss nce or snce."
            )
        return once(ctx, *grads)

    return refuse_or_run
