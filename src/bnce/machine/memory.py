"""How much memory a run needed at most: the process's on a CPU, PyTorch's own on a GPU."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch


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
