"""The bodies: embedded words in, last hidden layer out. None of them sees the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bnce.registry import ModelConfig, load

if TYPE_CHECKING:
    from bnce.models.body import Body

__all__ = ["architecture", "build_body"]


def build_body(model: ModelConfig) -> Body:
    """Build the body that a model's settings describe."""
    model = model.settled()
    sizes = {name: getattr(model, name) for name in model.__struct_fields__}
    body: Body = load(model.code)(**sizes)
    return body


def architecture(model: ModelConfig) -> str:
    """Write a model's layers as the paper's Tables 1 and 3 do, such as 200–600(R)–400(B)–V."""
    settings = msgspec.to_builtins(model.settled())
    repeated = f"{settings['num_layers']}×" if settings.get("num_layers", 1) > 1 else ""
    return model.layers.format(**settings, num_words=settings.get("order", 0) - 1, repeated=repeated)
