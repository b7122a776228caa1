"""Kernels for a GPU, written in Triton and CUDA, that stand in for plain functions of PyTorch.

A plain function that has a kernel asks whether kernels are `usable`, and imports it in that place: Triton is loaded
only where it is used. A kernel's function has the name, the arguments and the meaning of the plain one, and is tested
against it. The environment variable BNCE_TRITON=0 chooses plain functions everywhere.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from importlib.util import find_spec
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
