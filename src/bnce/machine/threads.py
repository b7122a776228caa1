"""Cores and threads: how many a process uses, and how PyTorch's threads wait for each other."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from pathlib import Path

# Turns of a waiting thread's loop before it sleeps: microseconds. GNU's runtime has it spin for milliseconds.
SPIN_COUNT = "1000"


def wait_asleep() -> None:
    """Have OpenMP's threads sleep where they wait for long. Call it before PyTorch is loaded.

    They meet after every operation, thousands of times per second. Where another process wants the same cores, a thread
    would spin away its share of a core while the one it waits for is not running, and two were many times slower than
    one.
    """
    if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT


def use_threads(usual: int = 0) -> int:
    """Have PyTorch compute with `usual` threads, 0 for one per core, and give their number; the environment decides."""
    import torch

    number = torch.get_num_threads()  # PyTorch's own: that of the environment, or one per core
    if not any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")):
        number = usual or min(number, num_cores())  # a container may have a share of the machine
    torch.set_num_threads(number)
    return torch.get_num_threads()


def num_threads_without_torch() -> int:
    """Count the threads of whatever computes without PyTorch: as many as OMP_NUM_THREADS says, or one per core."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else num_cores()


def num_cores() -> int:
    """Count the cores this process may use, which in a container are fewer than the machine has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _quota(Path("/sys/fs/cgroup"))))


def _quota(cgroup: Path) -> int:
    """Read how many cores' time a container may use, rounded up; very many where nobody limits it."""
    version_2 = cgroup / "cpu.max"
    version_1 = [cgroup / "cpu" / f"cpu.cfs_{name}_us" for name in ("quota", "period")]
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        files = [version_2] if version_2.exists() else version_1
        quota, period = (int(number) for file in files for number in file.read_text(encoding="ascii").split())
        if quota > 0:
            return math.ceil(quota / period)
    return sys.maxsize
