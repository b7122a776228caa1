"""Signals: raised where they come, or held back until what is being done is whole."""

from __future__ import annotations

import signal
import threading

import pytest

from bnce.machine.signals import SIGNALS, Stopped, hold_signals, raise_on_signals


@pytest.fixture(autouse=True)
def _handlers_are_given_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_breaks_off(number: int, status: int) -> None:
    with pytest.raises(Stopped) as stopped, raise_on_signals():
        signal.raise_signal(number)
    assert stopped.value.status == status
    assert not isinstance(stopped.value, Exception)


def test_a_second_signal_is_not_ours() -> None:
    """It ends the process at once, however long the first one's end takes."""
    with raise_on_signals():
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_held_signal_is_passed_on_at_the_end() -> None:
    done = []

    def work() -> None:
        with hold_signals() as held:
            assert not held()
            signal.raise_signal(signal.SIGTERM)
            assert held()
            done.append("whole")

    with pytest.raises(Stopped) as stopped, raise_on_signals():
        work()
    assert done == ["whole"]
    assert stopped.value.number == signal.SIGTERM


def test_in_another_thread_nothing_is_held_or_handled() -> None:
    seen: list[object] = []

    def work() -> None:
        with raise_on_signals(), hold_signals() as held:
            seen.append(held())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
