"""The bodies: embedded words in, last hidden layer out. None of them sees the vocabulary."""

from __future__ import annotations

import msgspec

from bnce.models.body import Body, State
from bnce.registry import ModelConfig, load

__all__ = ["Body", "State", "architecture", "build_body"]


def build_body(config: ModelConfig) -> Body:
    """Build the body a config names."""
    body: Body = load(config.code)(config.settled())
    return body


def architecture(config: ModelConfig) -> str:
    """Write a model's layers as the paper's Tables 1 and 3 do, such as 200–600(R)–400(B)–V."""
    settings = msgspec.to_builtins(config.settled())
    repeated = f"{settings['num_layers']}×" if settings.get("num_layers", 1) > 1 else ""
    return config.layers.format(**settings, num_words=settings.get("order", 0) - 1, repeated=repeated)
