"""Triton twins of plain functions, chosen here and nowhere else.

A twin has the name, the arguments and the meaning of its plain function, and is tested against it. Nothing imports a
module of this room directly: `with_twin` lets a twin stand in for a plain function, and `choose` gives the whole module
where a fast way is built differently. BNCE_TRITON=0 chooses plain functions everywhere.
"""

from __future__ import annotations

import functools
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


def available(device: torch.device) -> bool:
    """Say whether Triton runs on a device: on a CUDA GPU, and anywhere under its interpreter."""
    return _HAS_TRITON and (device.type == "cuda" or _IS_INTERPRETED)


def _under_autocast(tensor: Tensor) -> bool:
    return torch.is_autocast_enabled(tensor.device.type)


def _in_two_bytes(tensor: Tensor) -> bool:
    return tensor.dtype.itemsize < 4


def _without_gradient_on_a_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda and not torch.is_grad_enabled()


# What a module asks for beside a device that runs Triton.
_CONDITIONS: dict[str, Callable[[Tensor], bool]] = {
    "dense": _under_autocast,
    "log_normaliser": _without_gradient_on_a_gpu,
    "recurrence": _under_autocast,
    "softmax": _in_two_bytes,
    "target_scores": _without_gradient_on_a_gpu,
}
_MODULES: dict[str, ModuleType] = {}


def choose(name: str, tensor: Tensor, *, deterministic: bool = False) -> ModuleType | None:
    """Give the module `kernels/<name>.py` where it can work on a tensor, or None: use the plain functions.

    `deterministic` is for the rows, whose twins add up in no fixed order.
    """
    # Kernels compute in float32.
    if deterministic or not available(tensor.device) or tensor.dtype == torch.float64:
        return None
    if name in _CONDITIONS and not _CONDITIONS[name](tensor):
        return None
    if not _MODULES:
        _import_all()
    if tensor.is_cuda and not torch.compiler.is_compiling():
        if not _starts(tensor.device):
            return None
        if tensor.device.index != torch.cuda.current_device():
            return _Elsewhere(_MODULES[name], tensor.device)
    return _MODULES[name]


@functools.cache
def _starts(device: torch.device) -> bool:
    """Start a small kernel on a GPU, once, to know whether any starts there: Triton needs a C compiler, for one."""
    try:
        with torch.cuda.device(device):
            _MODULES["clip"].clip_factor(torch.ones((), dtype=torch.float32, device=device), 1.0)
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


def _import_all() -> None:
    # Only now, because it takes Triton; and by a statement, which torch.compile can follow.
    from bnce.kernels import (  # noqa: F401
        adam,
        batch_nce,
        chunk_nce,
        chunk_softmax,
        clip,
        dense,
        log_normaliser,
        merged_chunk_nce,
        recurrence,
        rows,
        sampled_softmax,
        softmax,
        target_scores,
        targets,
    )

    _MODULES.update(locals())
