"""What a process does when the others do not answer."""

from __future__ import annotations

import multiprocessing
import sys
import time
from pathlib import Path

import torch

from bnce.machine import processes


def _work(told: Path, device: torch.device | None, patience: float, seconds: float) -> None:
    with told.open("w", encoding="utf-8") as sys.stderr:
        processes.TIMEOUT_SECONDS = patience
        with processes.World(0, 1, device).patience():
            time.sleep(seconds)
        sys.stderr.write("went on\n")


def _wait(directory: Path, *, device: torch.device | None, patience: float, seconds: float) -> tuple[int | None, str]:
    """Wait in a process of its own, which may be ended; give its status and what it said."""
    told = directory / "told"
    # A fork has PyTorch already, whose import takes seconds.
    process = multiprocessing.get_context("fork").Process(target=_work, args=(told, device, patience, seconds))
    process.start()
    process.join(60)
    return process.exitcode, told.read_text(encoding="utf-8")


def test_a_gpu_that_waits_for_lost_processes_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    status, told = _wait(tmp_path, device=torch.device("cuda"), patience=0.2, seconds=30)
    assert status == 2
    assert told.startswith("bnce: Another process of the run has ended or did not answer in time")
    assert told.count("\n") == 1


def test_who_is_alone_or_answered_goes_on(tmp_path: Path) -> None:
    assert _wait(tmp_path, device=torch.device("cuda"), patience=60, seconds=0) == (0, "went on\n")
    assert _wait(tmp_path, device=None, patience=0.2, seconds=0.5) == (0, "went on\n")
