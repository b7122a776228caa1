"""The map over processes: in order, not far ahead, and with an end to errors."""

from __future__ import annotations

import itertools
import multiprocessing
import operator
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from bnce import UserError
from bnce.machine import workers
from bnce.machine.workers import Workers, num_cores


def ordered_map(function: Callable[[Any], Any], items: Iterable[Any], num_workers: int) -> Generator[Any]:
    with Workers(num_workers) as made:
        yield from made.map(function, items)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_order_is_kept(num_workers: int) -> None:
    assert list(ordered_map(operator.neg, range(40), num_workers)) == [-item for item in range(40)]
    assert list(ordered_map(operator.neg, [], num_workers)) == []


def test_single_item_starts_no_process() -> None:
    assert list(ordered_map(_process, [0], 2)) == [os.getpid()]


def _process(_: int) -> int:
    return os.getpid()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_endless_items_are_taken_as_needed(num_workers: int) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    results = ordered_map(operator.neg, items(), num_workers)
    assert list(itertools.islice(results, 5)) == [-1, -2, -3, -4, -5]
    assert taken <= 5 + 3 * num_workers
    results.close()
    assert not multiprocessing.active_children()


def test_a_result_does_not_wait_for_items_to_be_read() -> None:
    """The items are read as they are needed, however many could be under way."""
    read: list[int] = []
    results = Workers(8, _AtOnce()).map(operator.neg, (read.append(item) or item for item in range(20)))
    assert next(results) == 0
    assert read == [0]
    assert list(results) == [-item for item in range(1, 20)]


class _AtOnce(Executor):
    """Has done everything when it is asked to."""

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*given, **named))
        return done


@pytest.mark.parametrize("num_workers", [1, 2])
def test_errors_of_workers_reach_the_caller(num_workers: int) -> None:
    with pytest.raises(ZeroDivisionError):
        list(ordered_map((1).__truediv__, [1, 2, 0, 3], num_workers))


def _survive(number: int) -> int:
    os.kill(os.getpid(), number)
    return number


def test_workers_leave_signals_to_the_parent() -> None:
    signals = [signal.SIGINT, signal.SIGTERM] * 2
    assert list(ordered_map(_survive, signals, 2)) == signals


def test_death_of_a_worker_is_explained() -> None:
    with pytest.raises(UserError, match="run it again with num_workers=1"):
        list(ordered_map(os._exit, [1, 1, 1], 2))


def test_processes_serve_one_map_after_another() -> None:
    with Workers(2) as workers:
        first = set(workers.map(_process, range(20)))
        assert os.getpid() not in first
        assert set(workers.map(_process, [0])) <= first
    assert not multiprocessing.active_children()


def test_cores() -> None:
    assert 1 <= num_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "max 100000"}, sys.maxsize),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, sys.maxsize),
        ({}, sys.maxsize),
    ],
)
def test_a_container_may_use_its_share(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert workers._quota(tmp_path) == cores


@pytest.mark.timeout(30)
def test_death_of_a_worker_does_not_wait_for_the_others() -> None:
    with pytest.raises(UserError, match="worker processes died"):
        list(ordered_map(_sleep_or_die, [60, 0, 0], 2))
    assert not multiprocessing.active_children()


def _sleep_or_die(seconds: int) -> None:
    time.sleep(seconds)
    os._exit(1)


@pytest.mark.timeout(60)
def test_a_worker_killed_while_it_waits_is_explained() -> None:
    """A process that has no work may hold what another one needs to go on."""
    for victim in range(2):
        with Workers(2) as workers:
            processes = sorted(set(workers.map(_process, range(20))))
            time.sleep(0.2)  # until both wait for work
            os.kill(processes[victim % len(processes)], signal.SIGKILL)
            with pytest.raises(UserError, match="One of 2 worker processes died"):
                list(workers.map(_sleep_briefly, range(20)))  # so long that each process is asked
    assert not multiprocessing.active_children()


def _sleep_briefly(_: int) -> None:
    time.sleep(0.05)


@pytest.mark.timeout(60)
def test_an_error_does_not_wait_for_items_that_are_larger_than_a_pipe() -> None:
    results = ordered_map(_sleep, [bytes(3_000_000)] * 20, 2)
    next(results)
    with pytest.raises(ZeroDivisionError):
        results.throw(ZeroDivisionError())
    assert not multiprocessing.active_children()


def _sleep(_: bytes) -> None:
    time.sleep(0.2)


def _large(number: int) -> bytes:
    return bytes(3_000_000)


@pytest.mark.timeout(60)
def test_an_error_does_not_wait_for_what_a_killed_process_was_sending() -> None:
    for num_results in range(1, 5):
        results = ordered_map(_large, range(1000), 2)
        for _ in range(num_results):
            next(results)
        with pytest.raises(ZeroDivisionError):
            results.throw(ZeroDivisionError())
    assert not multiprocessing.active_children()
