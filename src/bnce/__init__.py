"""Word language models over huge vocabularies at the speed of small ones.

`bnce.load(PATH)` opens a trained run, a mixture or an n-gram model for use. `bnce.OutputLayer` is the drop-in for any
PyTorch model; `bnce.noise` makes its noise. `bnce.prepare`, `bnce.train` and `bnce.evaluate` do what the commands of
the same names do. `__all__` is everything there is to import; docs/api.md has an example of each.

PyTorch and other packages are loaded when a name first needs them, so that the command line answers at once.
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

# Where each name lives, and the extra that brings what it needs.
_HOMES = {
    "Noise": ("bnce.noise", "layer"),
    "OutputLayer": ("bnce.output_layer", "layer"),
    "load": ("bnce.scoring.loading", "layer"),
    "noise": ("bnce.noise", "layer"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bnce' has no attribute '{name}'")
    home, extra = _HOMES[name]
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as error:
        from bnce.machine.packages import explain_missing

        raise explain_missing(error, f"bnce.{name}", extra) from error
    return module if home == f"bnce.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
