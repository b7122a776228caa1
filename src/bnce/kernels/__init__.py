"""Optional Triton twins of plain functions: the same name, the same meaning, tested against the plain ones."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch


def available(device: torch.device) -> bool:
    """Say whether Triton runs on a device: on a CUDA GPU, and anywhere under its interpreter."""
    return _installed() and (device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None
