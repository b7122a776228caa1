"""Which probabilities are used: with the constant Z, or with the softmax."""

from __future__ import annotations

from typing import Literal

from bnce.scoring.model import Model

Mode = Literal["unnormalised", "normalised"]


def choose_mode(model: Model, mode: Mode | None) -> Mode:
    """Choose the constant Z where the model has one, unless a mode is given; refuse what the model cannot do."""
    if mode == "unnormalised":
        model.refuse_unnormalised()
    return mode or ("unnormalised" if model.self_normalised else "normalised")
