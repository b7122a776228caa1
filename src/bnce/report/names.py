"""How models and losses are called, in which order they stand and which colour a loss has everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bnce.registry import LOSSES, MODELS, Loss, ModelConfig, find

# Okabe and Ito's colours, which the colour-blind can tell apart, and others beside them.
COLOURS = {
    "softmax": "#5b6472",
    "self-normalised softmax": "#8c96a3",
    "NCE": "#c98500",
    "S-NCE": "#d55e00",
    "sampled softmax": "#b5485d",
    "B-NCE": "#0072b2",
    "adaptive B-NCE": "#009e73",
    "chunk B-NCE": "#7a4fbf",
    "chunk softmax": "#a6761d",
    "adaptive softmax": "#2f6f4f",
}
# Those of other losses, in the order in which these were registered.
OTHER_COLOURS = ("#b3589a", "#3d3d3d", "#8a7a00", "#8c564b", "#556b2f")


@dataclass(frozen=True)
class ModelName:
    """A model by the name the paper prints, and its place in the table: with a double line between families."""

    shown: str
    family: str
    order: tuple[int, int]


@dataclass(frozen=True)
class LossName:
    """A loss by the name the paper prints, with K where it draws words, its place among the losses and its colour."""

    record: Loss
    shown: str
    num_noise: int  # K
    order: tuple[int, int]
    colour: str


def name_model(settings: Mapping[str, Any]) -> ModelName:
    """Name the model of a run's `[model]` table."""
    kind = find(ModelConfig, settings["name"])
    model = kind(**{key: settings[key] for key in kind.__struct_fields__ if key in settings})
    shown, ngram = model.title, getattr(model, "order", 0)
    num_layers, usual = (getattr(one, "num_layers", 0) for one in (model, kind()))
    if num_layers == usual:
        num_layers = 0
    if ngram:
        shown = f"{ngram}-gram {shown}"
    if num_layers:
        shown = f"{num_layers}-layer {shown}"
    family = model.name.removeprefix("relu-")
    return ModelName(shown, family, (list(MODELS).index(model.name), ngram or num_layers))


def name_loss(settings: Mapping[str, Any]) -> LossName:
    """Name the loss of a run's `[loss]` table."""
    kind = find(Loss, settings["name"])
    loss = kind(**{key: settings[key] for key in kind.__struct_fields__ if key in settings})
    num_noise = getattr(loss, "num_noise", 0)
    shown = f"adaptive {loss.title}" if num_noise and loss.batch_noise != "none" else loss.title
    others = [other.title for other in LOSSES.values() if other.title not in COLOURS]
    colour = COLOURS.get(shown) or OTHER_COLOURS[others.index(loss.title) % len(OTHER_COLOURS)]
    if num_noise:
        shown = f"{shown}, K={num_noise}"
    return LossName(loss, shown, num_noise, (list(LOSSES).index(loss.name), num_noise), colour)
