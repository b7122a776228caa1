"""Which device computes, what it is called, when it has done its work, and how much memory that took."""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
from pathlib import Path

import torch

from bnce.errors import UserError, argument


def choose_device(name: str) -> torch.device:
    """Turn `auto`, `cpu`, `cuda` or `cuda:N` into a device that is there, and make a GPU the current one."""
    device = find_device(name)
    if device.index is not None:
        # Streams, captured steps and kernels are made on the current device, wherever their tensors are.
        torch.cuda.set_device(device)
    return device


def find_device(name: str) -> torch.device:
    """Find the device of that name, and take no memory on it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index is not None):
            raise RuntimeError
    except RuntimeError as error:
        raise UserError(f"Unknown device '{name}': use auto, cpu, cuda or cuda:N.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"The device is '{name}', but PyTorch finds no CUDA GPU: use {argument('device', 'cpu')}.")
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise UserError(
            f"The device is '{name}', but the last GPU of this machine is cuda:{last}: use a GPU that exists."
        )
    return device


def describe_device(device: torch.device) -> str:
    """Name the machine a figure was taken on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    num_threads = torch.get_num_threads()
    return f"CPU, {num_threads} thread{'s' if num_threads > 1 else ''}"


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done all it was given; a CPU has always."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
