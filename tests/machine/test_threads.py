"""CPU threads: how many there are, how they wait, and that a resumed run keeps their number."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_corpus import Watcher, small_config, small_corpus

from bnce.machine import threads
from bnce.machine.threads import num_cores, use_threads
from bnce.runs.directory import Run
from bnce.training.run import run_training

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _restored_threads() -> Iterator[None]:
    """Leave the number of threads as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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


def test_waiting_threads_sleep_soon_unless_the_environment_says_how_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set before PyTorch is loaded, which is when it is read."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    probe = """
import os, sys
import bnce.cli
bnce.cli.main = lambda: print(os.environ.get("GOMP_SPINCOUNT"), "torch" in sys.modules)
from bnce.__main__ import main
main()
"""
    for given, told in (
        ({}, "1000 False"),
        ({"GOMP_SPINCOUNT": "7"}, "7 False"),
        ({"OMP_WAIT_POLICY": "active"}, "None False"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", probe], capture_output=True, text=True, check=True, env={**os.environ, **given}
        )
        assert done.stdout.splitlines()[0] == told


def test_cores() -> None:
    assert 1 <= num_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("share", "cores"), [("150000 100000", 2), ("100000 100000", 1), ("900000 100000", 8), ("max 100000", 8), (None, 8)]
)
def test_a_container_may_use_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: str | None, cores: int
) -> None:
    monkeypatch.setattr(threads, "_CPU_MAX", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    if share is not None:
        (tmp_path / "cpu.max").write_text(share + "\n")
    assert num_cores() == cores


@pytest.mark.usefixtures("no_number")
@pytest.mark.parametrize("asked", [None, 1])
def test_a_resumed_run_keeps_its_threads_unless_another_number_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int | None
) -> None:
    monkeypatch.setattr(threads, "num_cores", lambda: 2)
    corpus = small_corpus(tmp_path / "corpus", num_train=203)
    run = Run.create(tmp_path / "run", small_config(corpus), corpus)
    stops = iter([False, False, True])
    torch.set_num_threads(2)
    assert run_training(run, corpus, CPU, Watcher(), should_stop=lambda: next(stops))["threads"] == 2
    torch.set_num_threads(1)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", str(asked))
    resumed = run_training(Run.open(run.path), corpus, CPU, Watcher(), resume=True)
    assert resumed["threads"] == (asked or 2)
    assert resumed["device"] == ("CPU, 2 threads, then CPU, 1 thread" if asked else "CPU, 2 threads")
