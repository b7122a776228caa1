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
            if isinstance(value, float) and not math.isfinite(value):
                _refuse(command, name, f"is {value}: give a finite number.")
            if isinstance(value, int) and abs(value) > MAX_NUMBER:
                _refuse(command, name, f"has {len(str(abs(value)))} digits: give a number up to {MAX_NUMBER:,}.")
        command(**given)

    return run


def _refuse(command: Callable[..., None], name: str, why: str) -> None:
    """Refuse the value of an option, unless it has a bound of its own above, which has been checked."""
    option = typing.get_args(typing.get_type_hints(command, include_extras=True)[name])[1]
    if option.max is None:
        # Typer keeps the first spelling of an annotated option as its default.
        spellings = (str(option.default), *(option.param_decls or ()))
        long = next((one for one in spellings if one.startswith("--")), f"--{name.replace('_', '-')}")
        raise UserError(f"{long} {why}")
