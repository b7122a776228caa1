"""The one error a user can cause, the kinds of it that somebody has to tell apart, and how messages name arguments."""

from __future__ import annotations

import contextlib
import difflib
import errno
import math
import operator
import re
from collections.abc import Iterable, Iterator

_SHOWN = 80  # letters of a value in a message


class UserError(ValueError):
    """Bad input: the message says what was received, what is allowed and what to change.

    The command line prints it as one sentence and ends with status 2.
    """


class DivergedError(UserError):
    """Training that made a model useless: numbers that are not finite, or a perplexity worse than guessing."""


class OutOfMemoryError(UserError):
    """Training that does not fit into memory, the machine's or the GPU's."""


class DiskFullError(UserError):
    """A disk, or the size that a file may have here, that is used up: `what` happened, and what the `remedy` is.

    How to go on then differs between commands: `then` is for those that can simply be run again.
    """

    def __init__(self, what: str, remedy: str = "free some space", then: str = "run the same command again.") -> None:
        super().__init__(f"{what}; {remedy}, then {then}")
        self.what, self.remedy = what, remedy


class BusyError(UserError):
    """Something that another process is working on."""


def shown(value: object) -> str:
    """Write a value that was received the way Python does, on one line and not without end."""
    try:
        text = repr(value)
    except ValueError:  # of a number with thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


# What PyTorch and the system's loader say, which have no exceptions of their own for it.
_NO_MEMORY = re.compile(
    r"allocate memory|not enough memory|out of memory|unable to mmap|ALLOC_FAILED|failed to map segment", re.IGNORECASE
)


def counted(number: int, one: str, several: str | None = None) -> str:
    """Count things in a sentence: `1 thread`, `1,000 threads`."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def full_memory(error: BaseException | None) -> str | None:
    """Name the memory that is full where an error says so: the machine's or the GPU's."""
    text = str(error)
    if isinstance(error, OSError):
        says_so = error.errno == errno.ENOMEM
    else:
        says_so = isinstance(error, RuntimeError | ImportError) and _NO_MEMORY.search(text) is not None
    if not says_so and not isinstance(error, MemoryError):
        return None
    return "GPU's memory" if "CUDA" in text or "CUDNN" in text else "memory"


def _near(name: str, allowed: list[str]) -> list[str]:
    return difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)


def unknown_name(kind: str, name: object, allowed: Iterable[str]) -> UserError:
    """Say that `name` is no known `kind`, list those that are, and suggest the near one."""
    allowed, hint, named = list(allowed), "", shown(name)
    if isinstance(name, str):
        near = [*_near(name, allowed), *_near(name.lower(), allowed)]
        hint = f" Did you mean '{near[0]}'?" if near else ""
        named = f"'{name}'" if name.isprintable() and len(name) <= _SHOWN else named
    return UserError(f"Unknown {kind} {named}: choose one of {', '.join(allowed)}.{hint}")


def whole_number(name: str, value: object, least: int | None) -> int:
    """Take a whole number that is not below `least`; what is none is refused."""
    allowed = "" if least is None else f" of {least} or more"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise UserError(f"{name} is {shown(value)}: give a whole number{allowed}.")
    try:
        number = operator.index(value)
    except TypeError:  # a tensor of another type or shape
        raise UserError(f"{name} is {shown(value)}: give a whole number{allowed}.") from None
    if least is not None and number < least:
        raise UserError(f"{name} is {number}: give {least} or more.")
    return number


def finite_number(name: str, value: object) -> float:
    """Take a finite number, also one in a tensor; what is none is refused."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{name} is {shown(value)}: give a finite number.")
    return number


# Arguments whose option is not their name with hyphens.
_OPTIONS = {
    "form": "--format",
    "normalised": "--mode normalised",
    "num_workers": "--workers",
    "score_files": "--scores",
    "settings": "--set",
    "source": "--from",
    "vocabulary_file": "--vocab",
}
_names_options = False


@contextlib.contextmanager
def naming_options() -> Iterator[None]:
    """Let messages name arguments as the command line does, while it runs."""
    global _names_options
    before, _names_options = _names_options, True
    try:
        yield
    finally:
        _names_options = before


def argument(name: str, value: object = None) -> str:
    """Name an argument to whoever gives it: `num_workers=1` in Python, `--workers 1` on the command line."""
    if not _names_options:
        if value is None:
            return name
        return f"{name}={value!r}" if isinstance(value, int | float) else f"{name}={str(value)!r}"
    hyphenated = name.replace("_", "-")
    if value is False:
        return f"--no-{hyphenated}"
    option = _OPTIONS.get(name, f"--{hyphenated}")
    return option if value is None or value is True else f"{option} {value}"
