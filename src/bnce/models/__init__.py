"""The bodies: embedded words in, last hidden layer out. None of them sees the vocabulary."""

from __future__ import annotations

import dataclasses

from bnce.config import ModelConfig
from bnce.kinds.bodies import BODIES
from bnce.models.body import Body, State

__all__ = ["Body", "State", "architecture", "build_body"]


def build_body(model: ModelConfig) -> Body:
    """Build the body that a model's settings describe, from those of them that it has."""
    kind = BODIES.find(model.name)
    settings = dataclasses.asdict(model.settled())
    names = (*kind.sizes, "dropout", *(["context"] if kind.attends else []))
    body: Body = kind.load()(**{name: settings[name] for name in names}, **kind.options)
    return body


def architecture(model: ModelConfig) -> str:
    """Write a model's layers as the paper's Tables 1 and 3 do, such as 200–600(R)–400(B)–V."""
    kind = BODIES.find(model.name)
    settings = dataclasses.asdict(model.settled())
    repeated = f"{settings['num_layers']}×" if settings["num_layers"] > 1 else ""
    return kind.layers.format(**settings, num_words=model.order - 1, repeated=repeated)
