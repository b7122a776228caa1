"""What tests of several files share: batches at the output layer, how hypothesis runs, and a word on skipped tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import browser
import pytest
import torch
from hypothesis import settings

import bnce

# The fixtures `bnce`, `refused`, `corpus` and `trained`, for the tests of every directory.
pytest_plugins = ["command"]
# On tensors of a few hundred numbers a second thread only waits, on a busy machine twenty times as long as one works.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the programs that tests start
# A shell that starts the tests in the background has Ctrl-C ignored, and Python leaves it so.
signal.signal(signal.SIGINT, signal.default_int_handler)
# What a user writes must outlast a loss of power. What a test writes need not, and a test would wait for the disk as
# long as it works. A file that is not open is still an error, and programs that tests start do wait.
os.fsync = os.fstat  # type: ignore[assignment]
MANY_OBJECTS = 100_000  # that a collection of garbage goes through: about 0.05 seconds
# The same examples in every run, and no clock: the machines that run this are slow and shared.
settings.register_profile("bnce", deadline=None, derandomize=True)
settings.load_profile("bnce")


def pytest_collection_finish() -> None:
    """Leave all that was imported out of later collections of garbage, which would take most of a second each."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _leave_out_what_was_imported_since() -> Iterator[None]:
    """Also leave out what a module's tests have imported: later ones are slowed down by all of it."""
    yield
    if len(gc.get_objects()) > MANY_OBJECTS:
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter clear all of it at its end, or libraries complain of what is left."""
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that found no browser at the end of the run, where nobody overlooks it."""
    skipped = [report.nodeid for report in terminalreporter.getreports("skipped") if "browser" in report.keywords]
    if skipped:
        terminalreporter.section("no browser", yellow=True)
        terminalreporter.line(f"{len(skipped)} tests were skipped, because they need a browser and none was found:")
        for name in skipped:
            terminalreporter.line(f"    {name}")
        terminalreporter.line(f"To run them: {browser.HOW_TO} Then run: pytest -m browser", yellow=True)


@pytest.fixture
def losses_of_its_own() -> Iterator[None]:
    """Let a test register losses, and forget them after it."""
    before = dict(bnce.LOSSES)
    yield
    bnce.LOSSES.clear()
    bnce.LOSSES.update(before)
