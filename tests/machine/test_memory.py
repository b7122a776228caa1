"""The peak of a run's memory: its own, neither that of what the process did before nor that of its parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bnce.machine import memory

LARGE = 150_000_000  # PyTorch by itself takes 230 MB

# In a process of its own: what the tests before it needed must not matter. Its parent was three times as large.
FORGETS = f"""
import numpy, torch
from bnce.machine.memory import peak_memory_bytes, reset_peak_memory
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


def test_this_machine_has_more_than_this_process_holds() -> None:
    cpu = torch.device("cpu")
    assert memory.total_memory_bytes(cpu) > memory.peak_memory_bytes(cpu)
    memory.release_memory(cpu)  # nothing to give back but what nobody refers to


def test_a_gpu_is_asked_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    answers = {
        "get_device_properties": SimpleNamespace(total_memory=80),
        "mem_get_info": (30, 80),
        "memory_allocated": 5,
        "max_memory_allocated": 7,
        "reset_peak_memory_stats": None,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: asked.append(device) or answer)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append(gpu))
    gpu = torch.device("cuda:1")
    memory.reset_peak_memory(gpu)
    memory.release_memory(gpu)
    assert memory.total_memory_bytes(gpu) == 80
    assert memory.free_gpu_memory_bytes(gpu) == 30
    assert memory.held_gpu_memory_bytes(gpu) == 5
    assert memory.peak_memory_bytes(gpu) == 7
    assert asked == 6 * [gpu]
