"""Runs typer's app so that what is wrong with a command line is told as everything else is: one sentence."""

from __future__ import annotations

import copy
import functools
import math
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Any

import typer

from bnce.cli.completion import complete_setting
from bnce.errors import UserError

PROGRAM = "bnce"
MAX_NUMBER = 2**63 - 1
_INTERRUPTED = 130  # the status of a program that Ctrl-C ended
# What a wrong number is told as, by words of typer's own message in its various versions.
_NUMBERS = {"valid integer": "a whole number in digits, such as 80000", "valid float": "a number, such as 0.5"}

# The base of typer's errors is not among its public names: older versions take it from click, newer ones bring a copy.
_CommandLineError: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def checked(command: Callable[..., None]) -> Callable[..., None]:
    """Refuse numbers that no command can use before it runs: not finite, or beyond 64 bits."""

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


def run_app(app: typer.Typer) -> None:
    """Run the command that was typed, and leave with its status; without one, show what there is."""
    arguments = sys.argv[1:] or ["--help"]
    typed = copy.copy(app)
    # typer takes longer to build all commands than some of them need to run.
    named = [
        command for command in app.registered_commands if getattr(command.callback, "__name__", "") == arguments[0]
    ]
    typed.registered_commands = named or app.registered_commands
    command = f"{PROGRAM} {arguments[0]}" if named else PROGRAM
    try:
        status = typed(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    except typer.Abort:
        status = _INTERRUPTED
    except _CommandLineError as error:
        raise UserError(_sentence(error, arguments, command)) from error
    except ModuleNotFoundError as error:
        from bnce.machine.packages import explain_missing

        raise explain_missing(error, command, arguments[0]) from error
    # A command gives nothing back; typer.Exit comes back as its status.
    sys.exit(status or 0)


def _sentence(error: Any, arguments: Sequence[str], command: str) -> str:
    """Say what is wrong with a command line, and where to look."""
    told = str(error.format_message())
    received = _received(getattr(getattr(error, "param", None), "opts", ()), arguments)
    # What is missing may have been typed where it does not count: behind --.
    if isinstance(error, typer.BadParameter) and error.message and received is not None:
        # Not every version of typer names the value.
        told = f"{received[0]} received '{received[1]}': {error.message}"
        for kind, wanted in _NUMBERS.items():
            if kind in error.message.lower():
                told = f"{received[0]} received '{received[1]}': give {wanted}"
    told = " ".join(told.split()).rstrip(".")
    if setting := _setting_like(error):
        told = f"No such option: {error.option_name}. Settings are given with --set, such as --set {setting}VALUE"
    return told if told.endswith("?") else f"{told}: see '{command} --help'."


def _setting_like(error: Any) -> str | None:
    """Find the setting that somebody may have meant by an option that does not exist, where --set takes it."""
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if option is None or context is None or not any("--set" in one.opts for one in context.command.params):
        return None
    wanted = f".{option.lstrip('-').replace('-', '_')}="
    return next((name for name in complete_setting("") if name.endswith(wanted)), None)


def _received(names: Sequence[str], arguments: Sequence[str]) -> tuple[str, str] | None:
    """Find an option and its value among what was typed, the last one, which counts."""
    for place in range(len(arguments) - 1, -1, -1):
        name, separator, value = arguments[place].partition("=")
        if name in names and name.startswith("-"):
            if separator:
                return name, value
            if place + 1 < len(arguments):
                return name, arguments[place + 1]
    return None
