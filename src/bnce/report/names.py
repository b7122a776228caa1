"""How models and losses are called, in which order they stand and which colour a loss has everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bnce.kinds.bodies import BODIES
from bnce.kinds.losses import LOSSES, Colour, Loss
from bnce.report.runs import count


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
    colour: Colour


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
    shown, colour = kind.shown, kind.colour
    if num_noise:
        shown = f"{kind.shown_with_drawn or shown}, K={num_noise}"
        colour = kind.colour_with_drawn or colour
    return LossName(kind, shown, num_noise, (LOSSES.place(kind.name), num_noise), colour)


def colours() -> list[Colour]:
    """List the colours that a loss can have, each once."""
    found = [colour for kind in LOSSES for colour in (kind.colour, kind.colour_with_drawn) if colour is not None]
    return list(dict.fromkeys(found))
