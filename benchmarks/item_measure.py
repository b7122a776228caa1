"""Time the training steps of one model with nothing beside it, and take its peak memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from item_training import Trainer


def measure(
    make: Callable[[], Trainer], device: torch.device, num_timed: int, max_seconds: float = 3.0
) -> dict[str, Any]:
    """Train whole epochs until there are so many steps, or so many seconds are over."""
    is_cuda = device.type == "cuda"
    held = 0
    if is_cuda:
        gc.collect()  # the model before this one must be gone, or its memory would be taken off
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
    about = {"device": torch.cuda.get_device_name(device) if is_cuda else "CPU", "torch": torch.__version__}
    try:
        trainer = make()
        trainer.start(0.001, 1)
        trainer.epoch()
        seconds, num_epochs = 0.0, 0
        while num_epochs * trainer.num_steps < num_timed and seconds < max_seconds:
            _wait(device)
            begin = time.perf_counter()
            trainer.epoch()
            _wait(device)
            seconds += time.perf_counter() - begin
            num_epochs += 1
    except torch.OutOfMemoryError:
        return {"gave_up": "out of memory", **about}
    return {
        "ms_per_step": 1000 * seconds / (num_epochs * trainer.num_steps),
        "items_per_second": num_epochs * trainer.users.num_targets / seconds,
        "targets_per_step": trainer.users.num_targets / trainer.num_steps,
        "places_per_step": trainer.num_places,
        "num_timed": num_epochs * trainer.num_steps,
        "peak_memory_bytes": torch.cuda.max_memory_allocated(device) - held if is_cuda else None,
        "held_bytes": trainer.held_bytes(),
        "precision": trainer.precision,
        "captured": is_cuda,
        **about,
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
