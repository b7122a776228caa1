"""What an output layer can be made with: options that fit its loss, and noise that its loss can see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bnce.errors import UserError, finite_number, shown, unknown_name, whole_number
from bnce.kinds.losses import LOSSES, Loss
from bnce.noise import Noise

REDUCTIONS = ("mean", "sum", "none")
LOG_Z = 9.0
PENALTY = 0.1
# The options that not all losses have, as they are where nobody gives them.
DEFAULTS = {
    "log_z": LOG_Z,
    "num_noise": 0,
    "penalty": PENALTY,
    "cutoffs": None,
    "div_value": None,
}


def check_sizes(hidden_size: int, vocab_size: int, noise: Noise) -> None:
    """Refuse sizes that are no numbers of units and words, and noise over other words."""
    whole_number("hidden_size", hidden_size, 1)
    whole_number("vocab_size", vocab_size, 1)
    if len(noise) != vocab_size:
        raise UserError(f"The noise covers {len(noise)} words but vocab_size is {vocab_size}: give one count per word.")


def check_options(kind: Loss, given: Mapping[str, Any]) -> None:
    """Refuse values that no loss can work with, and options that this loss does not have."""
    finite_number("log_z", given["log_z"])
    whole_number("num_noise", given["num_noise"], 0)
    if finite_number("penalty", given["penalty"]) < 0:
        raise UserError(f"penalty is {given['penalty']}: it must be 0 or more.")
    whole_number("ignore_index", given["ignore_index"], None)
    if given["reduction"] not in REDUCTIONS:
        raise unknown_name("reduction", given["reduction"], REDUCTIONS)
    if given["learn_log_z"] and not kind.has("learn_log_z"):
        raise UserError(f"learn_log_z is on, but {kind.name} is exactly normalised and has no Z: leave it out.")
    if not given["replacement"] and not kind.has("replacement"):
        raise UserError(f"The loss {kind.name} draws with replacement only: leave out replacement=False.")
    if kind.draws == "must" and given["num_noise"] < 1:
        raise UserError(
            f"num_noise is {given['num_noise']}: {kind.name} draws its noise words, so give 1 or more "
            f"({kind.usual_num_noise})."
        )
    for name, default in DEFAULTS.items():
        if not kind.has(name) and given[name] != default:
            raise UserError(
                f"{name} is {shown(given[name])}, but the loss {kind.name} has no use for it: leave it out."
            )


def check_noise(kind: Loss, noise: Noise, drawn: Noise | None, num_noise: int) -> None:
    """Refuse noise that cannot be what the loss sees: it would train a wrong model without a word."""
    if kind.batch_is_noise and noise.bent:
        drawing = " or ".join(other.name for other in LOSSES if other.draws == "must" and other.self_normalises)
        also = ", give this noise as drawn" if kind.draws == "may" and num_noise else ""
        raise UserError(
            f"The loss {kind.name} takes the other targets of the batch as noise, so {noise.bent} would "
            "train a wrong model. Give how often each class is a target (bnce.noise.from_targets counts them)"
            f"{also}, or use the losses {drawing}, which draw their noise."
        )
    if drawn is None:
        return
    if not (kind.batch_is_noise and kind.draws == "may" and num_noise):
        raise UserError(
            f"drawn is for bnce with num_noise above 0, but the loss is {kind.name} with num_noise "
            f"{num_noise}: leave it out, or give it as noise."
        )
    if len(drawn) != len(noise):
        raise UserError(f"drawn covers {len(drawn)} words but vocab_size is {len(noise)}.")
