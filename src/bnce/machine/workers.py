"""A map over workers that keeps the order and never runs far ahead of the one who reads it.

The workers are processes of this machine, or whatever a given executor runs its tasks on.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import math
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, TypeVar, cast

from bnce.errors import UserError, argument
from bnce.machine.allocation import keep_freed
from bnce.machine.cluster import Cluster
from bnce.machine.stopping import SIGNALS

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
        self._processes: _Processes | None = None

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

    def __exit__(self, *error: object) -> None:
        if self._processes is not None:
            self._processes.end()

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result]:
        """Yield function(item) for every item in turn."""
        items = iter(items)
        first: list[Item] = []
        if self._executor is None and self._processes is None:
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

    def _start(self) -> _Processes:
        if self._processes is None:
            self._processes = _Processes(self.num_workers)
        return self._processes


class _Processes(ThreadPoolExecutor):
    """Threads with a process each, and a pipe to it that only the two of them hold.

    So nobody waits for a process that has ended, whoever ended it: its pipe ends with it.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number, "bnce-workers")
        self._own = threading.local()
        self._started: list[SpawnProcess] = []
        self._starts = threading.Lock()
        self._is_over = False

    def submit(self, function: Callable[..., Result], /, *given: Any, **named: Any) -> Future[Result]:
        """Run a function in one of the processes."""
        return super().submit(self._run, functools.partial(function, *given, **named))

    def end(self) -> None:
        """End the processes at once: nobody waits for what they may still be at."""
        self._kill()
        self.shutdown(cancel_futures=True)
        for process in self._started:
            process.join()

    def _run(self, task: Callable[[], Result]) -> Result:
        """Have the process of this thread run a task."""
        if not hasattr(self._own, "pipe"):
            self._own.pipe = self._start_process()
        try:
            self._own.pipe.send(task)
            result, error = self._own.pipe.recv()
        except (EOFError, OSError) as error:
            self._kill()  # what the others are at is of no use any more
            raise BrokenExecutor from error
        if error is not None:
            raise error
        return cast(Result, result)

    def _kill(self) -> None:
        with self._starts:
            self._is_over = True
            for process in self._started:
                process.kill()

    def _start_process(self) -> Connection:
        """Start a process and give the pipe to it. A signal interrupts the main thread alone, and never this."""
        # A fresh interpreter, since a fork of a process with threads (a progress bar, torch) may hang.
        context = multiprocessing.get_context("spawn")
        with self._starts:
            if self._is_over:
                raise BrokenExecutor
            pipe, other_end = context.Pipe()
            process = context.Process(target=_serve, args=(other_end,))
            # Else the first process starts it, and it lets the signals through that are held back here.
            resource_tracker.ensure_running()
            # The process inherits this: Ctrl-C, which a terminal sends to it, too, is the parent's concern.
            let_through = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, let_through)
            self._started.append(process)
        other_end.close()
        return pipe


def _serve(pipe: Connection) -> None:
    """Run in a worker what its parent sends, never outlive the parent, and hold on to memory."""
    # Every block takes and frees the same megabytes: to give them back to the system each time costs a tenth of
    # all the time.
    keep_freed(_KEPT_BYTES)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):  # of a parent that has ended
        while True:
            pipe.send(_run_task(pipe.recv()))


def _run_task(task: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return task(), None
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)))  # pickled, it loses where it was raised
        return None, error


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def num_cores() -> int:
    """Count the cores this process may use, which in a container are fewer than the machine has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _quota(Path("/sys/fs/cgroup"))))


def num_threads_without_torch() -> int:
    """Count the threads of whatever computes without PyTorch: as many as OMP_NUM_THREADS says, or one per core."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else num_cores()


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
