"""A map over workers that keeps the order and never runs far ahead of the one who reads it.

The workers are processes of this machine, or whatever a given executor runs its tasks on.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

from bnce.errors import UserError, argument
from bnce.machine.allocation import keep_freed
from bnce.machine.cluster import Cluster

Item = TypeVar("Item")
Result = TypeVar("Result")

# Enough to keep every worker busy while results are taken in order; more would only hold text in memory.
_ITEMS_AHEAD = 3
_KEPT_BYTES = 2**29  # of freed memory, per process


class Workers:
    """Processes that are started when there is work for them, or an executor; they serve one map after another.

    Of an executor, `num_workers` says how many tasks it runs at once. It is left open, for it belongs to the caller.
    """

    def __init__(self, num_workers: int, executor: Executor | None = None) -> None:
        self._num_workers, self._executor = num_workers, executor
        self._pool: ProcessPoolExecutor | None = None

    @property
    def num_workers(self) -> int:
        """How many tasks run at once; a cluster grows and shrinks."""
        return self._executor.num_workers if isinstance(self._executor, Cluster) else self._num_workers

    @property
    def are_given(self) -> bool:
        """Whether tasks run wherever an executor runs them, which may be on other machines."""
        return self._executor is not None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._pool is None:
            return
        if kind is not None:
            # Nobody waits for what they are at; nor must the pool's own thread, for the rest of what one was sending.
            self._pool._pending_work_items.clear()
            self._pool._result_queue._writer.close()  # type: ignore[attr-defined]
            for process in list((self._pool._processes or {}).values()):
                process.kill()
        self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result]:
        """Yield function(item) for every item in turn."""
        items = iter(items)
        first: list[Item] = []
        if self._executor is None and self._pool is None:
            first = list(itertools.islice(items, 2 if self.num_workers > 1 else 0))
            if len(first) < 2:
                # A single item is done before a process has started.
                yield from map(function, itertools.chain(first, items))
                return
        executor = self._executor or self._start()
        waiting: collections.deque[Future[Result]] = collections.deque()
        try:
            for item in itertools.chain(first, items):
                waiting.append(executor.submit(function, item))
                # One for one: as many as were under way stay so.
                if len(waiting) > _ITEMS_AHEAD * self.num_workers or waiting[0].done():
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenExecutor as error:
            if self._executor is not None:
                raise UserError(
                    "A worker of the executor died, probably because memory ran out: run it again with fewer workers."
                ) from error
            raise UserError(
                f"One of {self.num_workers} worker processes died, probably because memory ran out: "
                f"run it again with {argument('num_workers', 1)}."
            ) from error
        finally:
            for future in waiting:
                future.cancel()

    def ask(self, function: Callable[..., Result], *given: object) -> dict[str, Result | BaseException]:
        """Run a short function on every worker of a cluster, or somewhere; give answers and errors by the worker."""
        if isinstance(self._executor, Cluster):
            return self._executor.ask_all(function, *given)
        executor = self._executor or self._start()
        future = executor.submit(function, *given)
        return {"": future.exception() or future.result()}

    def _start(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # A fresh interpreter, since a fork of a process with threads (a progress bar, torch) may hang.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.num_workers, mp_context=context, initializer=_serve_the_parent)
        return self._pool


def _serve_the_parent() -> None:
    """Leave interrupts to the parent, never outlive it, and hold on to memory."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Every block takes and frees the same megabytes: to give them back to the system each time costs a tenth of
    # all the time.
    keep_freed(_KEPT_BYTES)
    # A parent that was killed cannot end its pool, whose processes would wait for work forever.
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def num_cores() -> int:
    """Count the cores this process may use, which in a container are fewer than the machine has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _quota(Path("/sys/fs/cgroup"))))


def _quota(cgroup: Path) -> int:
    """Read how many cores' time a container may use, rounded up; very many where nobody limits it."""
    version_2 = cgroup / "cpu.max"
    version_1 = [cgroup / "cpu" / f"cpu.cfs_{name}_us" for name in ("quota", "period")]
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        files = [version_2] if version_2.exists() else version_1
        quota, period = (int(number) for file in files for number in file.read_text(encoding="ascii").split())
        if quota > 0:
            return math.ceil(quota / period)
    return sys.maxsize
