"""The paper's five bodies: embedded words in, last hidden layer out. None of them sees the vocabulary."""

from __future__ import annotations

from bnce.config import ModelConfig
from bnce.models.feedforward import FeedForward
from bnce.models.recurrent import Recurrent, State

Body = Recurrent | FeedForward

__all__ = ["Body", "FeedForward", "Recurrent", "State", "architecture", "build_body"]


def build_body(config: ModelConfig) -> Body:
    """Build the body a config names."""
    if config.name == "ffnn":
        return FeedForward(
            config.order, config.embedding_size, config.hidden_size, config.bottleneck_size, config.dropout
        )
    cell = config.name.removeprefix("relu-")
    bottleneck_size = config.bottleneck_size if config.name.startswith("relu-") else None
    return Recurrent(cell, config.embedding_size, config.hidden_size, bottleneck_size, config.dropout)


def architecture(config: ModelConfig) -> str:
    """Write a model's layers as the paper's Tables 1 and 3 do, such as 200–600(R)–400(B)–V."""
    if config.name == "ffnn":
        return f"{config.order - 1}×{config.embedding_size}–{config.hidden_size}–{config.bottleneck_size}(B)–V"
    bottleneck = f"–{config.bottleneck_size}(B)" if config.name.startswith("relu-") else ""
    return f"{config.embedding_size}–{config.hidden_size}(R){bottleneck}–V"
