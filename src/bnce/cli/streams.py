"""Standard output, which carries the result and is never cut short in silence, and standard error, which may fail."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from typing import Any

STANDARD_OUTPUT = "standard output"


def open_streams() -> None:
    """Make standard output UTF-8, as every text here is, whatever the locale says; and give what is closed a place.

    What is no Unicode, such as a path of arbitrary bytes, is escaped, and the escapes are those of JSON.
    """
    _fill_closed_descriptors()
    # Python has none at all where the caller closed it: notes then go nowhere, and a result is told to be lost.
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(_Results(1, "wb", closefd=False)), encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        sys.stdout.flush()
        sys.stdout = _text(_Results(sys.stdout.fileno(), "wb", closefd=False), sys.stdout)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:
        sys.stderr = _text(_Notes(sys.stderr.fileno(), "wb", closefd=False), sys.stderr)


def drop_stdout() -> None:
    """Let go of what standard output did not take, so that Python does not try once more as it ends."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Results(io.FileIO):
    """Standard output: an error says that it is its own, and a pipe that is full for now is waited for."""

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        try:
            # All of it: without a buffer, nobody would ask for the rest.
            while left.nbytes:
                num_bytes = super().write(left)
                if num_bytes is None:
                    select.select([], [self.fileno()], [])
                else:
                    left = left[num_bytes:]
        except OSError as error:
            error.filename = STANDARD_OUTPUT
            raise
        return memoryview(data).nbytes


class _Notes(io.FileIO):
    """Standard error: what it does not take is dropped, because the result matters more than what is said beside it."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or len(data)
        except OSError:
            return len(data)


def _text(raw: io.FileIO, like: Any) -> io.TextIOWrapper:
    """Make a text stream of a file, buffered as the one it replaces."""
    unbuffered = getattr(like, "write_through", False)
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding=like.encoding,
        errors=like.errors,
        line_buffering=like.line_buffering,
        write_through=unbuffered,
    )


def _fill_closed_descriptors() -> None:
    """Open what was closed on nothing: else the next file would get its number, and what is printed."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # What writes to standard output is to fail: with /dev/null, the result would be lost in silence.
            nothing = os.open(os.devnull, os.O_RDONLY if descriptor == 1 else os.O_RDWR)
            if nothing != descriptor:
                os.dup2(nothing, descriptor)
                os.close(nothing)
