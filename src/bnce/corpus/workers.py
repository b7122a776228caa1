"""A map over processes that keeps the order and never runs far ahead of the one who reads it."""

from __future__ import annotations

import collections
import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from bnce.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

# Enough to keep every worker busy while results are taken in order; more would only hold text in memory.
_ITEMS_AHEAD = 3


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], num_workers: int) -> Generator[Result]:
    """Yield function(item) for every item in turn, computed by several processes if that is asked for."""
    items = iter(items)
    first = list(itertools.islice(items, 2 if num_workers > 1 else 0))
    if len(first) < 2:
        # A single item is done before a process has started.
        yield from map(function, itertools.chain(first, items))
        return
    # A fresh interpreter, since a fork of a process with threads (a progress bar, torch) may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num_workers, mp_context=context, initializer=_leave_interrupts_to_the_parent)
    waiting: collections.deque[Future[Result]] = collections.deque()
    try:
        for item in itertools.chain(first, items):
            waiting.append(pool.submit(function, item))
            if len(waiting) > _ITEMS_AHEAD * num_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise UserError(
            f"One of {num_workers} worker processes died, as happens when memory runs out: "
            "run the same command with --workers 1."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def num_cores() -> int:
    """Count the cores this process may use, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
