"""The map over processes: in order, not far ahead, and with an end to errors."""

from __future__ import annotations

import itertools
import multiprocessing
import operator
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from bnce import UserError
from bnce.machine.workers import Processes, map_in_order


@pytest.mark.parametrize("num_workers", [1, 2])
def test_order_is_kept(num_workers: int) -> None:
    assert list(map_in_order(operator.neg, range(40), num_workers)) == [-item for item in range(40)]
    assert list(map_in_order(operator.neg, [], num_workers)) == []


def test_single_item_starts_no_process() -> None:
    assert list(map_in_order(_process, [0], 2)) == [os.getpid()]


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

    results = map_in_order(operator.neg, items(), num_workers)
    assert list(itertools.islice(results, 5)) == [-1, -2, -3, -4, -5]
    assert taken <= 5 + 3 * num_workers
    results.close()
    assert not multiprocessing.active_children()


def test_a_result_does_not_wait_for_items_to_be_read() -> None:
    """The items are read as they are needed, however many could be under way."""
    read: list[int] = []
    items = (read.append(item) or item for item in range(20))
    results = map_in_order(operator.neg, items, _AtOnce(), at_once=8)
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
        list(map_in_order((1).__truediv__, [1, 2, 0, 3], num_workers))


def _survive(number: int) -> int:
    os.kill(os.getpid(), number)
    return number


def test_workers_leave_signals_to_the_parent() -> None:
    signals = [signal.SIGINT, signal.SIGTERM] * 2
    assert list(map_in_order(_survive, signals, 2)) == signals


def test_death_of_a_worker_is_explained() -> None:
    with pytest.raises(UserError, match="run it again with num_workers=1"):
        list(map_in_order(os._exit, [1, 1, 1], 2))


def test_processes_serve_one_map_after_another() -> None:
    with Processes(2) as workers:
        first = set(map_in_order(_process, range(20), workers))
        assert os.getpid() not in first
        assert set(map_in_order(_process, [0], workers)) <= first
    assert not multiprocessing.active_children()


@pytest.mark.timeout(30)
def test_death_of_a_worker_does_not_wait_for_the_others() -> None:
    with pytest.raises(UserError, match="A worker process died"):
        list(map_in_order(_sleep_or_die, [60, 0, 0], 2))
    assert not multiprocessing.active_children()


def _sleep_or_die(seconds: int) -> None:
    time.sleep(seconds)
    os._exit(1)


@pytest.mark.timeout(60)
def test_a_worker_killed_while_it_waits_is_explained() -> None:
    """A process that has no work may hold what another one needs to go on."""
    for victim in range(2):
        with Processes(2) as workers:
            processes = sorted(set(map_in_order(_process, range(20), workers)))
            time.sleep(0.2)  # until both wait for work
            os.kill(processes[victim % len(processes)], signal.SIGKILL)
            with pytest.raises(UserError, match="A worker process died"):
                list(map_in_order(_sleep_briefly, range(20), workers))  # so long that each process is asked
    assert not multiprocessing.active_children()


def _sleep_briefly(_: int) -> None:
    time.sleep(0.05)


@pytest.mark.timeout(60)
def test_an_error_does_not_wait_for_items_that_are_larger_than_a_pipe() -> None:
    results = map_in_order(_sleep, [bytes(3_000_000)] * 20, 2)
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
        results = map_in_order(_large, range(1000), 2)
        for _ in range(num_results):
            next(results)
        with pytest.raises(ZeroDivisionError):
            results.throw(ZeroDivisionError())
    assert not multiprocessing.active_children()
