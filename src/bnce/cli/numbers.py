"""Numbers that no command can use, refused for all commands in one place: not finite, or beyond 64 bits."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable
from typing import Any

from bnce.errors import UserError

MAX_NUMBER = 2**63 - 1


def checked(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command look at the numbers that it is given before it runs."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for name, value in given.items():
            wrong = _what_is_wrong(value)
            if wrong is not None and not _is_bounded(command, name):
                raise UserError(f"{_option(command, name)} {wrong}.")
        command(**given)

    return run


def _what_is_wrong(value: object) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value}: give a finite number"
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
        return f"has {len(str(abs(value)))} digits: give a number up to {MAX_NUMBER:,}"
    return None


def _is_bounded(command: Callable[..., None], name: str) -> bool:
    """Say whether an option has a bound of its own above, which has been checked."""
    return any(getattr(entry, "max", None) is not None for entry in _entries(command, name))


def _option(command: Callable[..., None], name: str) -> str:
    """Name an option as a person writes it."""
    for entry in _entries(command, name):
        # Typer keeps the first spelling of an annotated option as its default.
        for spelling in (getattr(entry, "default", None), *(getattr(entry, "param_decls", None) or ())):
            if isinstance(spelling, str) and spelling.startswith("--"):
                return spelling
    return f"--{name.replace('_', '-')}"


def _entries(command: Callable[..., None], name: str) -> tuple[Any, ...]:
    """Find what a command says of one of its arguments beside its type."""
    hint = typing.get_type_hints(command, include_extras=True)[name]
    return typing.get_args(hint)[1:]
