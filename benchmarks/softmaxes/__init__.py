"""Other implementations of the softmax's cross entropy, as losses of their own beside `softmax`, which is ours."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
import torch.nn.functional as F

import bnce

_PLACE = f"{__name__}.forms"


def _on_gpu_with(package: str) -> Callable[[], bool]:
    return lambda: torch.cuda.is_available() and importlib.util.find_spec(package) is not None


class Plain(bnce.Loss, tag="softmax-plain", frozen=True):
    """softmax, plain: PyTorch's cross entropy"""

    code = f"{_PLACE}:plain"
    normalises = False
    log_z: float = 9.0  # that training starts at


class Compiled(Plain, tag="softmax-compiled", frozen=True):
    """softmax, compiled: PyTorch's cross entropy, compiled"""

    code = f"{_PLACE}:compiled"


class Linear(Plain, tag="softmax-linear", frozen=True):
    """softmax, linear: PyTorch's linear_cross_entropy"""

    code = f"{_PLACE}:linear"


class Cce(Plain, tag="softmax-cce", frozen=True):
    """softmax, cce: Cut Cross-Entropy"""

    code = f"{_PLACE}:cce"


class Liger(Plain, tag="softmax-liger", frozen=True):
    """softmax, liger: Liger-Kernel"""

    code = f"{_PLACE}:liger"


# Each with whether it can run here: some need a newer PyTorch, or a GPU and a package of their own.
SOFTMAXES: dict[type[bnce.Loss], Callable[[], bool]] = {
    Plain: lambda: True,
    Compiled: lambda: True,
    Linear: lambda: hasattr(F, "linear_cross_entropy"),
    Cce: _on_gpu_with("cut_cross_entropy"),
    Liger: _on_gpu_with("liger_kernel"),
}


def register() -> list[str]:
    """Register those that can run here, and give their names."""
    return [bnce.register(loss)().name for loss, can_run in SOFTMAXES.items() if can_run()]
