"""How gradients become steps: one module per optimiser, and what they share (clipping, merging, schedules)."""

from __future__ import annotations

from bnce.config import OptimiserConfig
from bnce.kinds.optimisers import OPTIMISERS
from bnce.language_model import LanguageModel
from bnce.optimisers.base import Optimiser

__all__ = ["Optimiser", "build_optimiser"]


def build_optimiser(model: LanguageModel, config: OptimiserConfig, *, deterministic: bool = False) -> Optimiser:
    """Build the configured optimiser for a model's parameters, which it takes over."""
    optimiser: Optimiser = OPTIMISERS.find(config.name).load()(model, config, deterministic=deterministic)
    return optimiser
