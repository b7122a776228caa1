"""Copies of the program: each task is taken once, and each copy has its share of the machine."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from bnce.machine.copies import Ended, share_machine, stop_with_starter, take_tasks
from bnce.machine.stopping import Stopped, raise_on_signals


def test_a_task_is_taken_once_and_nobody_waits_for_more() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.write(writing, bytes([7, 0, 255]))
    one, other = take_tasks(reading), take_tasks(reading)
    assert [next(one), next(other), next(one)] == [7, 0, 255]
    assert list(other) == []
    os.close(writing)
    assert list(take_tasks(reading)) == []
    os.close(reading)


def test_gpus_in_turn_and_cores_divided() -> None:
    shares = share_machine(["4", "GPU-8a"], 3)
    assert [share["CUDA_VISIBLE_DEVICES"] for share in shares] == ["4", "GPU-8a", "4"]
    assert {share["LOCAL_WORLD_SIZE"] for share in shares} == {"3"}
    assert share_machine([], 2) == 2 * [{"LOCAL_WORLD_SIZE": "2"}]


def test_a_copy_stops_when_the_pipe_is_closed_even_with_tasks_left() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"\1")
    with raise_on_signals():
        stop_with_starter(reading)
        with pytest.raises(Stopped) as stopped:  # noqa: PT012
            os.close(writing)
            time.sleep(20)
    assert stopped.value.number == signal.SIGTERM
    os.close(reading)


def test_a_copy_that_is_stopping_is_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second SIGTERM would end it before it has saved."""
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    reading, writing = os.pipe()
    with raise_on_signals():
        stop_with_starter(reading)
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGTERM)
        os.close(writing)
        for thread in threading.enumerate():
            if thread.name == "bnce-starter":
                thread.join(20)
    assert sent == []
    os.close(reading)


@pytest.mark.parametrize(
    ("status", "sentence", "how"),
    [
        (-9, "", "was ended by SIGKILL, perhaps because memory ran out."),
        (143, "Stopped by a signal (SIGTERM) before the end.", "was ended by SIGTERM."),
        (-36, "", "was ended by signal 36."),
        (1, "Unexpected error, KeyError: report it.", "failed: Unexpected error, KeyError: report it."),
        (120, "", "failed: it ended with status 120."),
    ],
)
def test_how_a_copy_ended(status: int, sentence: str, how: str) -> None:
    assert Ended(1, status, "", sentence).how == how
