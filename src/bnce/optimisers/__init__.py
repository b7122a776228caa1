"""How gradients become steps: one module per optimiser, and what they share (clipping, merging, schedules)."""

from __future__ import annotations

from bnce.config import OptimiserConfig
from bnce.kinds.optimisers import OPTIMISERS
from bnce.language_model import LanguageModel
from bnce.optimisers.base import KeptTables, Optimiser

__all__ = ["KeptTables", "Optimiser", "build_optimiser"]


def build_optimiser(
    model: LanguageModel, config: OptimiserConfig, *, deterministic: bool = False, tables: KeptTables | None = None
) -> Optimiser:
    """Build the configured optimiser for a model's parameters, which it takes over."""
    kind = OPTIMISERS.find(config.name).load()
    optimiser: Optimiser = kind(model, config, deterministic=deterministic, tables=tables)
    return optimiser
