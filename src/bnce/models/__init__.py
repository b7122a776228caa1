"""The bodies: embedded words in, last hidden layer out. None of them sees the vocabulary."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from bnce.config import ModelConfig
from bnce.kinds.bodies import BODIES

if TYPE_CHECKING:
    from bnce.models.body import Body

__all__ = ["architecture", "build_body"]


def build_body(config: ModelConfig) -> Body:
    """Build the body a config names."""
    kind = BODIES.find(config.name)
    body: Body = kind.load()(config.settled(), **kind.options)
    return body


def architecture(config: ModelConfig) -> str:
    """Write a model's layers as the paper's Tables 1 and 3 do, such as 200–600(R)–400(B)–V."""
    kind = BODIES.find(config.name)
    settings = dataclasses.asdict(config.settled())
    repeated = f"{settings['num_layers']}×" if settings["num_layers"] > 1 else ""
    return kind.layers.format(**settings, num_words=config.order - 1, repeated=repeated)
