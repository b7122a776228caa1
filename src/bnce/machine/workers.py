"""A map over workers that keeps the order and never runs far ahead of the one who reads it.

The workers are processes of this machine, or whatever a given executor runs its tasks on.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from bnce.errors import UserError, argument
from bnce.machine.signals import SIGNALS

Item = TypeVar("Item")
Result = TypeVar("Result")

# Enough to keep every worker busy while results are taken in order; more would only hold text in memory.
_ITEMS_AHEAD = 3


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int | Executor, at_once: int = 1
) -> Generator[Result]:
    """Yield function(item) for every item in turn, from so many processes or from an executor.

    `at_once` is how many tasks the executor runs at the same time, unless it says so itself (`num_workers`).
    """
    if isinstance(workers, int):
        with Processes(workers) as processes:
            yield from map_in_order(function, items, processes)
        return
    items, first = iter(items), []
    if isinstance(workers, Processes) and not workers.started:
        first = list(itertools.islice(items, 2 if workers.num_workers > 1 else 0))
        if len(first) < 2:
            # A single item is done before a process has started.
            yield from map(function, itertools.chain(first, items))
            return
    waiting: deque[Future[Result]] = deque()
    try:
        for item in itertools.chain(first, items):
            waiting.append(workers.submit(function, item))
            # One for one: as many as were under way stay so.
            if waiting[0].done() or len(waiting) > _ITEMS_AHEAD * getattr(workers, "num_workers", at_once):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenExecutor as error:
        remedy = argument("num_workers", 1) if isinstance(workers, Processes) else "fewer workers"
        raise UserError(
            f"A worker process died, probably because memory ran out: run it again with {remedy}."
        ) from error
    finally:
        for future in waiting:
            future.cancel()


class Processes(ThreadPoolExecutor):
    """Threads that have processes work, each over a pipe of its own that nobody else holds.

    So nobody waits for a process that has ended, whoever ended it: its pipe ends with it. A process is started when
    there is work for it.
    """

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers, "bnce-workers")
        self.num_workers = num_workers
        self.started: list[SpawnProcess] = []
        self._pipes: SimpleQueue[Connection] = SimpleQueue()  # to those that have no task

    def submit(self, function: Callable[..., Result], /, *given: Any, **named: Any) -> Future[Result]:
        """Run a function in one of the processes."""
        if len(self.started) < self.num_workers:
            self._start_process()
        return super().submit(self._run, functools.partial(function, *given, **named))

    def __exit__(self, *error: object) -> None:
        """End the processes at once: nobody waits for what they may still be at."""
        self._kill()
        self.shutdown(cancel_futures=True)
        for process in self.started:
            process.join()

    def _run(self, task: Callable[[], Result]) -> Result:
        """Have one of the processes run a task."""
        pipe = self._pipes.get()
        try:
            pipe.send(task)
            result, error = pipe.recv()
        except (EOFError, OSError) as error:
            self._kill()  # what the others are at is of no use any more
            raise BrokenExecutor from error
        finally:
            self._pipes.put(pipe)
        if error is not None:
            raise error
        return cast(Result, result)

    def _kill(self) -> None:
        for process in self.started:
            process.kill()

    def _start_process(self) -> None:
        # A fresh interpreter, since a fork of a process with threads (a progress bar, torch) may hang.
        context = multiprocessing.get_context("spawn")
        # Else the first process starts it, and it lets the signals through that are held back here.
        resource_tracker.ensure_running()
        # The process inherits this: Ctrl-C, which a terminal sends to it, too, is the parent's concern.
        let_through = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            pipe, other_end = context.Pipe()
            process = context.Process(target=_serve, args=(other_end,))
            process.start()
            other_end.close()
            self.started.append(process)
            self._pipes.put(pipe)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, let_through)


def _serve(pipe: Connection) -> None:
    """Run in a worker what its parent sends, as long as there is a parent."""
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            task = pipe.recv()
            answer: tuple[Any, Exception | None]
            try:
                answer = task(), None
            except Exception as error:
                error.add_note("".join(traceback.format_exception(error)))  # pickled, it loses where it was raised
                answer = None, error
            pipe.send(answer)
