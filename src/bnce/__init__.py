"""Word language models over huge vocabularies at the speed of small ones.

`bnce.load(PATH)` opens a trained run, a mixture or an n-gram model for use. `bnce.OutputLayer` is the drop-in for any
PyTorch model; `bnce.noise` makes its noise. PyTorch is loaded on first use, so that the command line answers at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bnce.errors import UserError
from bnce.version import __version__

if TYPE_CHECKING:
    from bnce import noise
    from bnce.noise import Noise
    from bnce.output_layer import OutputLayer
    from bnce.scoring.loading import load

__all__ = ["Noise", "OutputLayer", "UserError", "__version__", "load", "noise"]

_HOMES = {"OutputLayer": "bnce.output_layer", "Noise": "bnce.noise", "load": "bnce.scoring.loading"}


def __getattr__(name: str) -> Any:
    if name == "noise":
        return importlib.import_module("bnce.noise")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'bnce' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
