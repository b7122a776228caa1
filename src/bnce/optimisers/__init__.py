"""How gradients become steps: added up over groups and processes, clipped, and applied row by row."""

from __future__ import annotations

from bnce.optimisers.optimiser import Optimiser, build_optimiser

__all__ = ["Optimiser", "build_optimiser"]
