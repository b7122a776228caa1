"""Starts a command as many processes on this machine, as `torchrun` does. PyTorch is imported only to do so."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from typing import NoReturn

_BAD_INPUT = 2
_LAST_WORDS_SECONDS = 2.0  # for the first process to say why it ends


def started_many() -> bool:
    """Say whether torchrun, or a program like it, started this process as one of many."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


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


def launch_processes(num_processes: int, arguments: Sequence[str]) -> int:
    """Run `bnce` with these arguments in so many processes; return 0, or the status of the one that failed first."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
    )
    # Whoever fails says why in a sentence; PyTorch would add a page about who was told to stop.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        elastic_launch(config, sys.executable)("-m", "bnce", *arguments)
    except ChildFailedError as error:
        # A process that lost the others fails after the one that they lost.
        first = min(error.failures.values(), key=lambda failure: failure.timestamp)
        return first.exitcode if first.exitcode > 0 else 128 - first.exitcode
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    return 0
