"""What one of the processes that torchrun started knows of that, and how it ends. It needs no PyTorch."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import NoReturn

_BAD_INPUT = 2
_LAST_WORDS_SECONDS = 2.0  # for the first process to say why it ends


def started_many() -> bool:
    """Say whether torchrun, or a program like it, started this process as one of many."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def num_restarts() -> int:
    """Count how often torchrun has started the processes again after some had failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def tell_place(device: str, num_processes: int) -> str:
    """Say where something was computed: on a device, or by many processes that each have one like it."""
    return device if num_processes <= 1 else f"{num_processes} processes, each on {device}"


def leave(end: SystemExit) -> NoReturn:
    """End one of many processes at once: threads of PyTorch's that still wait for others may abort a slow end."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(end.code if isinstance(end.code, int) else 0 if end.code is None else 1)


def leave_after_the_first() -> NoReturn:
    """End a process that follows: the first one says why, and must not be stopped as the last before it has."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(_BAD_INPUT))  # what the first one's end brings the others
    time.sleep(_LAST_WORDS_SECONDS)
    raise SystemExit(_BAD_INPUT)
