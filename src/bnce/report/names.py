"""How models and losses are called, in which order they stand and which colour a loss has everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bnce.report.runs import count, printable

# The paper's order. Between families its table has a double line, between the models of one a single line.
_MODELS = {"ffnn": "FFNN", "rnn": "RNN", "relu-rnn": "ReLu-RNN", "lstm": "LSTM", "relu-lstm": "ReLu-LSTM"}
_FAMILIES = {"ffnn": 0, "rnn": 1, "relu-rnn": 1, "lstm": 2, "relu-lstm": 2}
_LOSSES = {
    "softmax": "softmax",
    "nce": "NCE",
    "snce": "S-NCE",
    "bnce": "B-NCE",
    "adaptive": "adaptive B-NCE",
    "chunk-bnce": "chunk B-NCE",
}


@dataclass(frozen=True)
class Colour:
    """A loss's colour on light and on dark ground: Okabe and Ito's, which the colour-blind can tell apart."""

    variable: str
    light: str
    dark: str


COLOURS = {
    "softmax": Colour("--softmax", "#5b6472", "#b8c0cc"),
    "nce": Colour("--nce", "#c98500", "#f2b63c"),
    "snce": Colour("--snce", "#d55e00", "#ff8a45"),
    "bnce": Colour("--bnce", "#0072b2", "#56b4e9"),
    "adaptive": Colour("--adaptive", "#009e73", "#2fd0a2"),
    "chunk-bnce": Colour("--chunk", "#7a4fbf", "#b79cf0"),
    "other": Colour("--other", "#b3589a", "#e79ccb"),
}


@dataclass(frozen=True)
class ModelName:
    """A model by the name the paper prints, and its place in the table."""

    shown: str
    family: int
    order: tuple[int, int, str]


@dataclass(frozen=True)
class LossName:
    """A loss by the name the paper prints, its place among the losses and the key of its colour."""

    shown: str
    order: tuple[int, int, str]
    colour: Colour


def name_model(settings: Mapping[str, Any]) -> ModelName:
    """Name the model of a run's `[model]` table; one the paper does not have keeps its name, at the end."""
    name = printable(str(settings["name"]))
    known = list(_MODELS)
    place = known.index(name) if name in _MODELS else len(known)
    shown = _MODELS.get(name, name)
    ngram = (count(settings, "order") or 0) if name == "ffnn" else 0
    if ngram:
        shown = f"{ngram}-gram {shown}"
    return ModelName(shown, _FAMILIES.get(name, len(_FAMILIES)), (place, ngram, name))


def name_loss(settings: Mapping[str, Any]) -> LossName:
    """Name the loss of a run's `[loss]` table, with its K where it has one: B-NCE with K > 0 is adaptive."""
    name = printable(str(settings["name"]))
    num_noise = num_noise_words(settings)
    kind = "adaptive" if name == "bnce" and num_noise else name
    known = list(_LOSSES)
    place = known.index(kind) if kind in _LOSSES else len(known)
    shown = _LOSSES.get(kind, name)
    if num_noise:
        shown = f"{shown}, K={num_noise}"
    return LossName(shown, (place, num_noise, name), COLOURS.get(kind, COLOURS["other"]))


def num_noise_words(settings: Mapping[str, Any]) -> int:
    """K, the noise words that are drawn; a softmax draws none, whatever its settings carry along."""
    return 0 if settings["name"] == "softmax" else count(settings, "num_noise") or 0
