"""What tests of several files share: batches at the output layer, how hypothesis runs, and a word on skipped tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator

import browser
import pytest
import torch
from hypothesis import settings

import bnce
from bnce import OutputBatch

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


MakeBatch = Callable[..., OutputBatch]


@pytest.fixture
def losses_of_its_own() -> Iterator[None]:
    """Let a test register losses, and forget them after it."""
    before = dict(bnce.LOSSES)
    yield
    bnce.LOSSES.clear()
    bnce.LOSSES.update(before)


@pytest.fixture
def make_batch() -> MakeBatch:
    """Give a maker of random float32 batches in which words repeat: the targets are among the first few of V."""

    def make(
        T: int,
        B: int,
        K: int = 0,
        *,
        V: int = 11,
        D: int = 6,
        num_target_words: int = 4,
        valid_TB: torch.Tensor | None = None,
        log_z: float = 2.5,
        sparse: bool = False,
        seed: int = 1,
    ) -> OutputBatch:
        generator = torch.Generator().manual_seed(seed)
        noise = bnce.noise.log_uniform(V)
        return OutputBatch(
            hidden_TBD=torch.randn(T, B, D, generator=generator).requires_grad_(),
            target_TB=torch.randint(num_target_words, (T, B), generator=generator),
            valid_TB=valid_TB,
            weight_VD=(0.5 * torch.randn(V, D, generator=generator)).requires_grad_(),
            bias_V=(noise.log_probs_V + log_z + 0.3 * torch.randn(V, generator=generator)).requires_grad_(),
            log_z=torch.tensor(log_z, requires_grad=True),
            noise=noise,
            num_noise=K,
            sparse=sparse,
        )

    return make
