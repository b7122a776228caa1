"""`--threads`: how many CPU threads compute the models of a command."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def threads_for(paths: Iterable[Path], num_threads: int) -> int:
    """Have PyTorch compute with so many threads if it computes one of these models, and give their number.

    0 is one per core. Exported runs are opened with the number: ONNX Runtime keeps threads of its own.
    """
    from bnce.machine.workers import num_cores
    from bnce.scoring.loading import needs_torch

    if not any(map(needs_torch, paths)):
        return num_threads or num_cores()
    from bnce.machine.threads import use_threads

    return use_threads(num_threads)
