"""How models and losses are called, in which order they stand and which colour a loss has everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bnce.kinds.bodies import BODIES
from bnce.kinds.losses import LOSSES, Loss
from bnce.report.runs import count

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

    kind: Loss
    shown: str
    num_noise: int  # K
    order: tuple[int, int]
    colour: str


def name_model(settings: Mapping[str, Any]) -> ModelName:
    """Name the model of a run's `[model]` table."""
    body = BODIES.find(str(settings["name"]))
    ngram = (count(settings, "order") or 0) if "order" in body.sizes else 0
    shown = f"{ngram}-gram {body.shown}" if ngram else body.shown
    num_layers = (count(settings, "num_layers") or 0) if "num_layers" in body.sizes else 0
    if num_layers == body.num_layers:
        num_layers = 0  # as it usually has
    if num_layers:
        shown = f"{num_layers}-layer {shown}"
    return ModelName(shown, body.family, (BODIES.place(body.name), ngram or num_layers))


def name_loss(settings: Mapping[str, Any]) -> LossName:
    """Name the loss of a run's `[loss]` table; one that draws no words has no K, whatever its settings carry along."""
    kind = LOSSES.find(str(settings["name"]))
    num_noise = 0 if kind.draws == "never" else count(settings, "num_noise") or 0
    shown = kind.shown_with_drawn if num_noise and kind.shown_with_drawn else kind.shown
    others = [other.shown for other in LOSSES if other.shown not in COLOURS]
    colour = COLOURS.get(shown) or OTHER_COLOURS[others.index(kind.shown) % len(OTHER_COLOURS)]
    if num_noise:
        shown = f"{shown}, K={num_noise}"
    return LossName(kind, shown, num_noise, (LOSSES.place(kind.name), num_noise), colour)
