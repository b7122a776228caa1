"""How gradients become steps: one module per optimiser, and what they share (clipping, merging, schedules)."""

from __future__ import annotations

from bnce.config import OptimiserConfig
from bnce.errors import unknown_name
from bnce.language_model import LanguageModel
from bnce.optimisers.base import Optimiser
from bnce.optimisers.rowwise import Rowwise
from bnce.optimisers.sgd import Sgd

__all__ = ["OPTIMISERS", "Optimiser", "build_optimiser"]

OPTIMISERS: dict[str, type[Optimiser]] = {"sgd": Sgd, "rowwise": Rowwise}


def build_optimiser(model: LanguageModel, config: OptimiserConfig, *, deterministic: bool = False) -> Optimiser:
    """Build the configured optimiser for a model's parameters, which it takes over."""
    if config.name not in OPTIMISERS:
        raise unknown_name("optimiser", config.name, OPTIMISERS)
    return OPTIMISERS[config.name](model, config, deterministic=deterministic)
