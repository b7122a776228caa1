"""Memory: the peak of a run is its own, and a command looks less for garbage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bnce.machine import devices

LARGE = 150_000_000  # PyTorch by itself takes 230 MB

# In a process of its own: what the tests before it needed must not matter. Its parent was three times as large.
FORGETS = f"""
import numpy, torch
from bnce.machine.devices import peak_memory_bytes, reset_peak_memory
cpu = torch.device("cpu")
reset_peak_memory(cpu)
assert peak_memory_bytes(cpu) < {2 * LARGE}, ("of its parent", peak_memory_bytes(cpu))
large = numpy.ones({LARGE}, dtype=numpy.uint8)
with_it = peak_memory_bytes(cpu)
del large
reset_peak_memory(cpu)
assert peak_memory_bytes(cpu) < with_it - {LARGE // 2}, (peak_memory_bytes(cpu), with_it)
again = numpy.ones({LARGE}, dtype=numpy.uint8)
assert peak_memory_bytes(cpu) > with_it - {LARGE // 2}, (peak_memory_bytes(cpu), with_it)
"""
OF_A_LARGE_PARENT = f"""
import os, sys
large = bytearray({3 * LARGE})
os.execv(sys.executable, [sys.executable, "-c", '''{FORGETS}'''])
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux forgets a process's peak")
def test_only_what_the_run_needs_counts() -> None:
    done = subprocess.run([sys.executable, "-c", OF_A_LARGE_PARENT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_gpu_is_asked_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    for name in ("max_memory_allocated", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda device: asked.append(device) or 7)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append(gpu))
    gpu = torch.device("cuda:1")
    devices.reset_peak_memory(gpu)
    devices.release_memory(gpu)
    assert devices.peak_memory_bytes(gpu) == 7
    assert asked == 3 * [gpu]


@pytest.mark.parametrize("triton", [False, True])
def test_a_command_looks_less_for_garbage_and_not_at_its_end(triton: bool) -> None:
    """With Triton it does look, for Triton would list its objects that are left."""
    # What was registered first runs last.
    probe = f"""
import atexit, gc, sys
if {triton}:
    sys.modules["triton._C.libtriton"] = sys
atexit.register(lambda: print(gc.get_threshold()[0], gc.get_freeze_count()))
sys.argv = ["bnce", "--version"]
from bnce.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    threshold, num_frozen = map(int, done.stdout.splitlines()[-1].split())
    assert threshold > 10_000
    assert (num_frozen > 1000) == (not triton)
