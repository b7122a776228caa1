"""How gradients become steps: one module per optimiser, and what they share (clipping, merging, schedules)."""

from __future__ import annotations

from bnce.language_model import LanguageModel
from bnce.optimisers.base import KeptTables, Optimiser
from bnce.registry import OptimiserConfig, load

__all__ = ["KeptTables", "Optimiser", "build_optimiser"]


def build_optimiser(
    model: LanguageModel, config: OptimiserConfig, *, deterministic: bool = False, tables: KeptTables | None = None
) -> Optimiser:
    """Build the configured optimiser for a model's parameters, which it takes over."""
    optimiser: Optimiser = load(config.code)(model, config, deterministic=deterministic, tables=tables)
    return optimiser
