"""Ctrl-C and a polite kill (SIGINT and SIGTERM): they break off what is being done, wherever that is.

They are held back only while something must not be left half done, such as a step of training. A second signal ends
the process at once, and so does one that comes while a library is loaded: its code may swallow an exception, or turn it
into another one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from bnce import files

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """A signal asked to stop. It is no `Exception`: nobody is to take it for an error and go on."""

    def __init__(self, number: int) -> None:
        how = "by Ctrl-C" if number == signal.SIGINT else "by a signal (SIGTERM)"
        self.sentence = f"bnce: Stopped {how} before the end.\n"  # what to tell of it
        self.number, self.status = number, 128 + number  # the exit status by which a shell knows it: 130 or 143
        super().__init__(self.sentence)


class HeldSignals:
    """The signal that came in while signals are held back; calling it says whether one did."""

    number: int | None = None

    def __call__(self) -> bool:
        """Say whether somebody wishes to stop."""
        return self.number is not None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Note a signal, the first of its kind."""
        signal.signal(number, signal.SIG_DFL)
        self.number = number


@contextlib.contextmanager
def hold_signals() -> Iterator[HeldSignals]:
    """Hold signals back; one that came in is passed on at the end, to whoever would have had it at first."""
    held = HeldSignals()
    with contextlib.suppress(Stopped), _handled_by(held.receive):
        yield held
    if held.number is not None:
        signal.raise_signal(held.number)


@contextlib.contextmanager
def raise_on_signals() -> Iterator[None]:
    """Let a signal raise `Stopped` wherever the program is."""

    def stop(number: int, frame: FrameType | None) -> None:
        stopped = Stopped(number)
        if _loads_a_library(frame) and not files.PARTIALS:
            with contextlib.suppress(OSError):
                os.write(2, stopped.sentence.encode())
            os._exit(stopped.status)
        signal.signal(number, signal.SIG_DFL)
        raise stopped

    with _handled_by(stop):
        yield


def _loads_a_library(frame: FrameType | None) -> bool:
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if frame.f_code.co_name == "<module>" and spec is not None and getattr(spec, "_initializing", False):
            return str(spec.name).partition(".")[0] != __name__.partition(".")[0]
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    # Only a program's first thread may say who hears of signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, signal.SIG_DFL if former is None else former)
