"""Losses that were compared with those of the package and lost. Each is one file: its function, and the record."""

from __future__ import annotations

import bnce
from benchmarks.losses import blackout, class_softmax, hierarchical_softmax, negative_sampling


def register() -> None:
    """Register them, as any script registers a loss of its own."""
    for part in (class_softmax, hierarchical_softmax, blackout, negative_sampling):
        bnce.register(part.LOSS)
