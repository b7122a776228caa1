"""How much memory there is, and how much of it is held: the process's on a CPU, PyTorch's own on a GPU."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
from pathlib import Path

import torch


def total_memory_bytes(device: torch.device) -> int:
    """Read how much memory a GPU has, or this machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_gpu_memory_bytes(device: torch.device) -> int:
    """Read how much of a GPU's memory nobody holds."""
    return int(torch.cuda.mem_get_info(device)[0])


def held_gpu_memory_bytes(device: torch.device) -> int:
    """Read how much of a GPU's memory PyTorch holds for tensors now."""
    return int(torch.cuda.memory_allocated(device))


def release_memory(device: torch.device) -> None:
    """Give back what nobody uses any more: a captured step keeps its memory until its owner is collected."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def reset_peak_memory(device: torch.device) -> None:
    """Forget what the process needed before: an experiment trains its rows one after the other."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):  # Linux alone has it; elsewhere the peak stays the process's
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory_bytes(device: torch.device) -> int:
    """Read the most memory held so far: the process's on a CPU, PyTorch's own on a GPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with contextlib.suppress(OSError, StopIteration):
        # Linux's own figure: what getrusage says may be that of the program which started this one.
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
