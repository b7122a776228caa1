"""CPU threads: how many there are, that they share cores, and that a resumed run keeps their number."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_corpus import Watcher, small_config, small_corpus

from bnce.machine import threads
from bnce.machine.threads import Sleep, find_runtime, use_threads, waiting_seconds
from bnce.runs.directory import Run
from bnce.training.plan import create_run
from bnce.training.run import run_training

CPU = torch.device("cpu")
on_linux = pytest.mark.skipif(find_runtime() is None, reason="PyTorch has another OpenMP runtime here")


@pytest.fixture(autouse=True)
def _restored_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave the number of threads as it was, and watch none of them."""
    before = torch.get_num_threads()
    monkeypatch.setattr(threads.Watcher, "start", lambda self: None)
    monkeypatch.setattr(threads, "_watcher", None)
    yield
    torch.set_num_threads(before)


def num_tasks() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.fixture
def no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the number of threads out of the environment."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_number")
def test_the_usual_number_is_used() -> None:
    assert use_threads(3) == torch.get_num_threads() == 3


@pytest.mark.usefixtures("no_number")
def test_no_more_threads_than_a_container_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "num_cores", lambda: 2)
    torch.set_num_threads(4)
    assert use_threads() == 2
    torch.set_num_threads(1)
    assert use_threads() == 1


def test_the_environment_has_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setattr(threads, "num_cores", lambda: 2)
    torch.set_num_threads(4)
    assert use_threads() == use_threads(3) == 4


@on_linux
def test_threads_sleep_while_a_team_that_does_nothing_is_there() -> None:
    """The runtime then has more threads than cores, which is when it does not spin for long."""
    runtime = find_runtime()
    assert runtime is not None
    torch.set_num_threads(2)
    torch.ones(100_000).add(1.0)
    sleep, before = Sleep(runtime), num_tasks()
    for _ in range(2):
        sleep.turn_on()
        sleep.turn_on()
        assert sleep._holder is not None
        assert num_tasks() > max(before, runtime.omp_get_num_procs())
        sleep.turn_off()
        sleep.turn_off()
        assert sleep._holder is None
    deadline = time.monotonic() + 10
    while num_tasks() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert num_tasks() <= before


@on_linux
def test_a_waiting_thread_burns_no_core_while_threads_sleep() -> None:
    """Two threads and two cores: after an operation the second one spins for milliseconds, or sleeps."""
    runtime = find_runtime()
    assert runtime is not None
    torch.set_num_threads(2)
    sleep = Sleep(runtime)

    def burnt() -> float:
        """Measure the CPU seconds of everyone but this thread while it is idle after many small operations."""
        total = 0.0
        numbers = torch.ones(100_000)
        for _ in range(30):
            numbers.add_(1.0)
            begin = time.process_time() - time.thread_time()
            time.sleep(0.004)
            total += time.process_time() - time.thread_time() - begin
        return total

    if runtime.omp_get_num_procs() < 2:
        pytest.skip("with one core and two threads nobody spins")
    # On a busy machine, the thread may not get to spin every time.
    for _ in range(5):
        spinning = burnt()
        sleep.turn_on()
        sleeping = burnt()
        sleep.turn_off()
        if sleeping < 0.5 * spinning:
            return
    pytest.fail(f"The other thread burnt {sleeping:.4f} s asleep and {spinning:.4f} s spinning.")


class Switch:
    """Stands for what has threads sleep."""

    def __init__(self) -> None:
        self.is_on = False

    def turn_on(self) -> None:
        self.is_on = True

    def turn_off(self) -> None:
        self.is_on = False


def test_threads_sleep_while_the_machine_is_busy() -> None:
    switch = Switch()
    watcher = threads.Watcher(switch)  # type: ignore[arg-type]
    states = []
    for share in (0.0, 0.1, 0.9, 0.1, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.2):
        watcher.heed(share)
        states.append(switch.is_on)
    assert states == [False] * 2 + [True] * 8 + [False] * 2


@on_linux
def test_what_threads_wait_for_a_core_is_read() -> None:
    waited = waiting_seconds()
    assert waited is not None
    assert waited >= 0


@pytest.mark.usefixtures("no_number")
def test_where_waiting_is_not_told_nobody_watches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(threads, "_TASKS", tmp_path / "none")
    monkeypatch.setattr(threads, "_MAPS", tmp_path / "none")
    assert waiting_seconds() is None
    assert find_runtime() is None
    assert use_threads(2) == 2
    assert threads._watcher is None


@pytest.mark.usefixtures("no_number")
@pytest.mark.parametrize("asked", [None, 1])
def test_a_resumed_run_keeps_its_threads_unless_another_number_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int | None
) -> None:
    monkeypatch.setattr(threads, "num_cores", lambda: 2)
    corpus = small_corpus(tmp_path / "corpus", num_train=203)
    run = create_run(tmp_path / "run", small_config(corpus), corpus)
    stops = iter([False, False, True])
    torch.set_num_threads(2)
    assert run_training(run, corpus, CPU, Watcher(), should_stop=lambda: next(stops))["threads"] == 2
    torch.set_num_threads(1)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", str(asked))
    resumed = run_training(Run.open(run.path), corpus, CPU, Watcher(), resume=True)
    assert resumed["threads"] == (asked or 2)
    assert resumed["device"] == ("CPU, 2 threads, then CPU, 1 thread" if asked else "CPU, 2 threads")
