"""What a process does when the others do not answer."""

from __future__ import annotations

import subprocess
import sys

WAITS = """
import time, torch
from bnce.machine.world import World
world = World(0, {size}, torch.device("cuda"), timeout_seconds=0.2)
with world.patience():
    time.sleep({seconds})
print("went on")
"""


def _wait(*, size: int, seconds: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WAITS.format(size=size, seconds=seconds)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_gpu_that_waits_for_lost_processes_ends_the_run_with_a_sentence() -> None:
    ended = _wait(size=2, seconds=30)
    assert ended.returncode == 2
    assert ended.stderr.startswith("bnce: Another process of the run has ended or did not answer in time")
    assert ended.stderr.count("\n") == 1
    assert not ended.stdout


def test_who_is_alone_or_answered_goes_on() -> None:
    assert _wait(size=2, seconds=0).stdout == "went on\n"
    assert _wait(size=1, seconds=0.5).stdout == "went on\n"
