"""A small layer and its input, for the tests of what people put around a layer.

Legend: T time steps, B streams, K drawn words, D hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from making import draws_all, layer_of
from torch import Tensor

import bnce

T, B, D, V, K = 3, 4, 6, 23, 5
COUNTS = torch.arange(1, V + 1)
FUSED = ("bnce", "chunk-bnce", "softmax", "self-normalised-softmax")  # losses with a backward pass of their own


def build(loss: str = "bnce", **options: Any) -> bnce.OutputLayer:
    """Make a layer, the same one every time."""
    options.setdefault("num_noise", K if draws_all(loss) else 0)
    torch.manual_seed(1)
    return layer_of(D, V, noise=COUNTS, loss=loss, **options)


def hidden_and_targets(seed: int = 2) -> tuple[Tensor, Tensor]:
    """Make hidden states (T, B, D) that want a gradient, and targets (T, B), some of them equal."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(T, B, D, generator=generator).requires_grad_(), torch.randint(9, (T, B), generator=generator)


def drawn_alike(layer: torch.nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    """Call a layer with the same drawn words every time."""
    torch.manual_seed(7)
    loss: Tensor = layer(hidden, targets)
    return loss


def dense(grad: Tensor | None) -> Tensor:
    """Give a gradient as a dense tensor."""
    assert grad is not None
    return grad.to_dense()
