"""How many cores and threads a process uses, and of how many it is one. PyTorch is loaded when it is needed."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")  # a container's share of time: "200000 100000" is two cores' of it


def use_threads(usual: int = 0) -> int:
    """Have PyTorch compute with `usual` threads, 0 for one per core, and give their number; the environment decides."""
    import torch

    number = torch.get_num_threads()  # PyTorch's own: that of the environment, or one per core
    if not any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")):
        number = usual or min(number, num_cores())  # a container may have a share of the machine
    torch.set_num_threads(number)
    return torch.get_num_threads()


def num_cores() -> int:
    """Count the cores this process may use, which in a container are fewer than the machine has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no container, or "max 100000": nobody limits it
        quota, period = map(int, _CPU_MAX.read_text(encoding="ascii").split())
        cores = min(cores, math.ceil(quota / period))
    return cores


def started_many() -> bool:
    """Say whether torchrun, or a program like it, started this process as one of many."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def num_restarts() -> int:
    """Count how often torchrun has started the processes again after some had failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def tell_place(device: str, num_processes: int) -> str:
    """Say where something was computed: on a device, or by many processes that each have one like it."""
    return device if num_processes <= 1 else f"{num_processes} processes, each on {device}"
