"""Kernels for a GPU, written in Triton and CUDA, that stand in for plain functions of PyTorch.

A plain function that has a kernel asks whether kernels are `usable`, and imports it in that place: Triton is loaded
only where it is used. A kernel's function has the name, the arguments and the meaning of the plain one, and is tested
against it. The environment variable BNCE_TRITON=0 chooses plain functions everywhere.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

_HAS_TRITON = os.environ.get("BNCE_TRITON") != "0" and find_spec("triton") is not None
_IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def usable(tensor: Tensor, *, autocast: bool = False) -> bool:
    """Say whether kernels can compute with a tensor: on a GPU where Triton starts, and under Triton's interpreter.

    They compute in float32, so never with float64. While `torch.compile` traces, plain functions are what it needs.
    `autocast` is for kernels with narrow products: these are usable only where autocast is on.
    """
    if torch.compiler.is_compiling() or not _HAS_TRITON or tensor.dtype == torch.float64:
        return False
    if autocast and not torch.is_autocast_enabled(tensor.device.type):
        return False
    return _IS_INTERPRETED or (tensor.is_cuda and _starts(tensor.device))


@functools.cache
def _starts(device: torch.device) -> bool:
    """Start a small kernel on a GPU, once, to know whether any starts there: Triton needs a C compiler, for one."""
    from bnce.kernels.elementwise import clip_factor

    try:
        clip_factor(torch.ones((), dtype=torch.float32, device=device), 1.0)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of Triton, of the compilers that it starts, or of the driver
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        warnings.warn(
            f"Triton's kernels do not start on {device}. Plain PyTorch functions replace them and are slower. {reason}",
            RuntimeWarning,
            stacklevel=3,
        )
        return False
    return True


def on_its_device(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Start a function's kernels on the GPU of its first tensor: Triton starts them on the current one."""

    @functools.wraps(function)
    def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        first = args[0]
        tensor = first if isinstance(first, Tensor) else first[0]  # type: ignore[index]
        if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
            return function(*args, **kwargs)
        with torch.cuda.device(tensor.device):
            return function(*args, **kwargs)

    return guarded


# What follows serves callers that find a kernel by its name; it goes with the last of them.

# What a module asks for beside `usable`.
_CONDITIONS: dict[str, Callable[[Tensor], bool]] = {
    "log_normaliser": lambda tensor: tensor.is_cuda and not torch.is_grad_enabled(),
    "softmax": lambda tensor: tensor.dtype.itemsize < 4,
    "target_scores": lambda tensor: tensor.is_cuda and not torch.is_grad_enabled(),
}


def choose(name: str, tensor: Tensor, *, deterministic: bool = False) -> ModuleType | None:
    """Give the module `kernels/<name>.py` where it can work on a tensor, or None: use the plain functions."""
    if deterministic or not usable(tensor) or (name in _CONDITIONS and not _CONDITIONS[name](tensor)):
        return None
    module = importlib.import_module(f"bnce.kernels.{name}")
    is_elsewhere = tensor.is_cuda and tensor.device.index != torch.cuda.current_device()
    return _Elsewhere(module, tensor.device) if is_elsewhere else module


class _Elsewhere(ModuleType):
    """A module whose kernels run on another GPU than the current one, which is where Triton would start them."""

    def __init__(self, module: ModuleType, device: torch.device) -> None:
        super().__init__(module.__name__)
        self._module, self._device = module, device

    def __getattr__(self, name: str) -> Callable[..., object]:
        function: Callable[..., object] = getattr(self._module, name)

        @functools.wraps(function)
        def on_device(*args: object, **kwargs: object) -> object:
            with torch.cuda.device(self._device):
                return function(*args, **kwargs)

        return on_device


def with_twin(name: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Let the function of the same name in `kernels/<name>.py` stand in for a plain one where it can work.

    The first argument decides. The plain function stays at hand as `__wrapped__`.
    """

    def decorate(plain: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        function_name = plain.__name__

        @functools.wraps(plain)
        def chosen(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            assert isinstance(args[0], Tensor)
            module = choose(name, args[0])
            function = plain if module is None else getattr(module, function_name)
            result: Result = function(*args, **kwargs)
            return result

        return chosen

    return decorate
