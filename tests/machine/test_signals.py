"""Signals: raised where they come, or held back until what is being done is whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

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


WRITING = """
from pathlib import Path
from bnce import files
from bnce.machine.signals import Stopped, raise_on_signals
try:
    with raise_on_signals(), files.{make}(Path("written")):
        import interrupted
except Stopped as stopped:
    raise SystemExit(stopped.status)
"""


@pytest.mark.parametrize("make", ["atomic_file", "atomic_directory"])
def test_a_library_that_is_loaded_while_something_is_written(tmp_path: Path, make: str) -> None:
    """What was begun is removed, which a process that ends at once does not come to."""
    (tmp_path / "interrupted.py").write_text("import signal\nsignal.raise_signal(signal.SIGTERM)\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", WRITING.format(make=make)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (143, "")
    assert [path.name for path in tmp_path.iterdir()] == ["interrupted.py"]
