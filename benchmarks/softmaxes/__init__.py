"""Other implementations of the softmax's cross entropy, as losses of their own beside `softmax`, which is ours."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
import torch.nn.functional as F

import bnce

_PLACE = f"{__name__}.forms"


def _loss(name: str, help: str) -> bnce.Loss:
    return bnce.Loss(
        name=f"softmax-{name}",
        shown=f"softmax, {name}",
        help=help,
        built_by=f"{_PLACE}:{name}",
        each_by=f"{_PLACE}:plain_each",
        self_normalises=False,
        columns=lambda shape: shape.vocab_size,
        scores_all_words=True,
    )


def _on_gpu_with(package: str) -> Callable[[], bool]:
    return lambda: torch.cuda.is_available() and importlib.util.find_spec(package) is not None


# Each with whether it can run here: some need a newer PyTorch, or a GPU and a package of their own.
SOFTMAXES: tuple[tuple[bnce.Loss, Callable[[], bool]], ...] = (
    (_loss("plain", "PyTorch's cross entropy"), lambda: True),
    (_loss("compiled", "PyTorch's cross entropy, compiled"), lambda: True),
    (_loss("linear", "PyTorch's linear_cross_entropy"), lambda: hasattr(F, "linear_cross_entropy")),
    (_loss("cce", "Cut Cross-Entropy"), _on_gpu_with("cut_cross_entropy")),
    (_loss("liger", "Liger-Kernel"), _on_gpu_with("liger_kernel")),
)


def register() -> list[str]:
    """Register those that can run here, and give their names."""
    there = [loss for loss, can_run in SOFTMAXES if can_run()]
    for loss in there:
        bnce.LOSSES.register(loss)
    return [loss.name for loss in there]
