"""Packages that are not always installed: which extra brings each, which commands need it, and one sentence without it.

`pip install bnce` is small: NumPy, safetensors and the command line's own needs. PyTorch and the rest come with extras.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

from bnce.errors import UserError

Given = ParamSpec("Given")
Result = TypeVar("Result")

BASE = ("numpy", "safetensors", "typer", "rich")
EXTRAS = {
    "layer": ("torch",),
    "train": ("torch", "pyarrow", "tensorboard", "matplotlib", "pooch", "jiwer"),
    "score": ("onnxruntime",),
    "ngram": ("kenlm",),
    "export": ("torch", "onnx", "onnxruntime", "transformers", "tokenizers"),
    "serve": ("fastapi", "starlette", "pydantic", "uvicorn", "h11"),
    "cluster": ("dask", "distributed"),
}
# PyTorch computes runs, ONNX Runtime exported runs, KenLM n-gram models: what uses any model needs one of them.
ENGINES = ("torch", "onnxruntime", "kenlm")
# What a command cannot do anything without, looked for before it starts: nobody wants to hear of it after the training.
# Of several in one place, one is enough.
COMMANDS: dict[str, tuple[str | tuple[str, ...], ...]] = {
    "fetch": ("pooch",),
    "prepare": ("pyarrow",),
    "train": ("torch", "pyarrow", "tensorboard"),
    "evaluate": ("torch", "pyarrow"),
    "calibrate": ("torch", "pyarrow"),
    "compare": (),
    "experiment": ("torch", "pyarrow", "tensorboard", "matplotlib"),
    "info": (),
    "score": (ENGINES,),
    "surprisal": (ENGINES,),
    "filter": ("torch", "pyarrow"),
    "rescore": (ENGINES,),
    "ngram": ("pyarrow",),
    "interpolate": (ENGINES,),
    "generate": (ENGINES,),
    "vocab": ("torch",),
    "export": ("torch",),
    "serve": (ENGINES, "fastapi", "pydantic", "uvicorn"),
}
# What starts without them but does not do all that it can: under the command that it is part of, if it is of one.
PARTS: dict[str, tuple[str, str | None, tuple[str, ...]]] = {
    "export to ONNX": ("export", "export", ("onnx", "onnxruntime")),
    "export to transformers": ("export", "export", ("transformers", "tokenizers")),
    "n-gram models": ("ngram", None, ("kenlm",)),
    "exported runs": ("score", None, ("onnxruntime",)),
}
_USUAL = "train"  # the extra that most commands want


class MissingPackageError(UserError, ImportError):
    """A package that is not installed: the message says what needs it and which extra brings it."""


def missing(package: str, what: str, extra: str = _USUAL) -> MissingPackageError:
    """Say that `what` needs a package that is not installed, and name `extra`, or the one that does bring it."""
    homes = [name for name, packages in EXTRAS.items() if package in packages]
    if homes and extra not in homes:
        extra = homes[0]
    return MissingPackageError(
        f"{what} needs the package '{package}', which is not installed: run pip install 'bnce[{extra}]'."
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


def extra_of(command: str) -> str:
    """Name the extra that brings what a command needs."""
    return command if command in ("export", "serve") else _USUAL


def lacking() -> dict[str, list[str]]:
    """List the commands, or the parts of them, that cannot start here, under the extra that each of them wants."""
    found: dict[str, list[str]] = {}
    for command, packages in COMMANDS.items():
        if any(map(_absent, packages)):
            found.setdefault(extra_of(command), []).append(command)
    for part, (extra, whole, wanted) in PARTS.items():
        if any(map(_absent, wanted)) and whole not in found.get(extra, []):
            found.setdefault(extra, []).append(part)
    return found


def _absent(wanted: str | tuple[str, ...]) -> str | None:
    """Name the package that is not installed, the first one where any of several would do; None if there is one."""
    names = (wanted,) if isinstance(wanted, str) else wanted
    return None if any(find_spec(name) is not None for name in names) else names[0]


def with_packages(command: Callable[Given, Result]) -> Callable[Given, Result]:
    """Let a command look for its packages before it starts, and name one that it misses later."""
    name = command.__name__

    @wraps(command)
    def run(*given: Given.args, **named: Given.kwargs) -> Result:
        for package in COMMANDS[name]:
            if (absent := _absent(package)) is not None:
                raise missing(absent, f"bnce {name}", extra_of(name))
        try:
            return command(*given, **named)
        except ModuleNotFoundError as error:
            raise explain_missing(error, f"bnce {name}", extra_of(name)) from error

    return run
