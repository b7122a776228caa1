"""Memory: what a process or a GPU holds at most, and giving back what nobody uses any more."""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
from pathlib import Path

import torch


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
    with contextlib.suppress(OSError, IndexError):
        # Linux's own figure: what getrusage says may be that of the program which started this one.
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
