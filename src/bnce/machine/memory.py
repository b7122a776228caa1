"""Memory: what a process or a GPU holds at most, and what is kept of what was freed. Nothing here loads PyTorch."""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# The numbers of malloc's settings, and the largest block that glibc lets it keep: 32 MiB.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_BYTES = 2**29, 2**25


def keep_freed() -> None:
    """Let malloc keep freed memory: arrays of some MB come and go, and new pages for them take a tenth of the time."""
    import ctypes  # here, because `bnce --help` needs none of this

    with contextlib.suppress(OSError, AttributeError, TypeError):  # where the C library is not glibc
        set_malloc = ctypes.CDLL(None).mallopt
        set_malloc(_TRIM_THRESHOLD, _KEPT_BYTES)
        set_malloc(_MMAP_THRESHOLD, _LARGEST_BYTES)


def release_memory(device: torch.device) -> None:
    """Give back what nobody uses any more: a captured step keeps its memory until its owner is collected."""
    gc.collect()
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()


def reset_peak_memory(device: torch.device) -> None:
    """Forget what the process needed before: an experiment trains its rows one after the other."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):  # Linux alone has it; elsewhere the peak stays the process's
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory_bytes(device: torch.device) -> int:
    """Read the most memory held so far: the process's on a CPU, PyTorch's own on a GPU."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    with contextlib.suppress(OSError, StopIteration):
        # Linux's own figure: what getrusage says may be that of the program which started this one.
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
