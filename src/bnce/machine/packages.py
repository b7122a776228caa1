"""Packages that are not always installed: what each extra brings, and one sentence without it.

`pip install bnce` is small: NumPy, safetensors, msgspec and tomli-w for settings, and the command line's own needs.
PyTorch and the rest come with extras.
"""

from __future__ import annotations

import importlib
from typing import Any

from bnce.errors import UserError

BASE = ("numpy", "safetensors", "msgspec", "tomli_w", "typer", "rich", "rapidfuzz")
EXTRAS = {
    "layer": ("torch",),
    "train": ("torch", "pyarrow", "tensorboard", "matplotlib", "pooch"),
    "data": ("pyarrow",),
    "ngram": ("kenlm",),
    "export": ("torch", "onnx", "onnxruntime", "transformers", "tokenizers"),
    "serve": ("fastapi", "starlette", "pydantic", "uvicorn", "prometheus_client"),
    "cluster": ("dask", "distributed"),
}
_USUAL = "train"  # the extra that most commands want


class MissingPackageError(UserError, ImportError):
    """A package that is not installed: the message says what needs it and which extra brings it."""


def missing(package: str, what: str, extra: str = _USUAL) -> MissingPackageError:
    """Say that `what` needs a package that is not installed, and name `extra`, or another one that does bring it."""
    homes = [name for name, packages in EXTRAS.items() if package in packages]
    home = next((name for name in (extra, _USUAL, *homes) if name in homes), extra)
    return MissingPackageError(
        f"{what} needs the package '{package}', which is not installed: run pip install 'bnce[{home}]'."
    )


def need(module: str, what: str, extra: str = _USUAL) -> Any:
    """Import a module of a package that `what` needs, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A package that is there may lack one that it needs itself.
        raise missing((error.name or module).partition(".")[0], what, extra) from error


def explain_missing(error: ModuleNotFoundError, what: str, extra: str = _USUAL) -> ImportError:
    """Say the same of an import that failed; one of a package that is not known here stays as it is."""
    package = str(error.name).partition(".")[0]
    known = {*BASE, *(name for packages in EXTRAS.values() for name in packages)}
    return missing(package, what, extra) if package in known else error
