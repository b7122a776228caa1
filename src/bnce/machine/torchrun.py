"""What one of the processes that torchrun started knows of that. It needs no PyTorch."""

from __future__ import annotations

import os


def started_many() -> bool:
    """Say whether torchrun, or a program like it, started this process as one of many."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def num_restarts() -> int:
    """Count how often torchrun has started the processes again after some had failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def tell_place(device: str, num_processes: int) -> str:
    """Say where something was computed: on a device, or by many processes that each have one like it."""
    return device if num_processes <= 1 else f"{num_processes} processes, each on {device}"
