"""What an output layer is made and called with: noise that the loss sees, tensors that fit, time steps first.

Legend: T time steps, B streams, N positions, D hidden.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bnce.errors import UserError
from bnce.noise import Noise
from bnce.registry import LOSSES, Loss


def time_first(layer: Any, hidden: Tensor, targets: Tensor, mask: Tensor | None, streams: Tensor | None) -> list[Any]:
    """Check types and shapes, and put the time steps first; (N, D) is one step."""
    targets, shape = word_ids(targets, "targets"), targets.shape
    check_hidden(hidden)
    if len(shape) not in (1, 2) or hidden.shape != (*shape, layer.hidden_size):
        sizes = "B, T" if layer.batch_first else "T, B"
        raise UserError(
            f"hidden {tuple(hidden.shape)} and targets {tuple(shape)} do not fit: "
            f"give ({sizes}, {layer.hidden_size}) with ({sizes}), or (N, {layer.hidden_size}) with (N,)."
        )
    for name, given in (("mask", mask), ("streams", streams)):
        if given is not None and not isinstance(given, Tensor):
            raise UserError(f"{name} is a {type(given).__name__}: give a tensor of the shape of targets.")
        if given is not None and given.shape != shape:
            raise UserError(f"{name} {tuple(given.shape)} must have the shape of targets, {tuple(shape)}.")
    if streams is not None and layer.loss.batch_noise != "streams":
        raise UserError(f"The loss {layer.loss.name} uses no streams: leave them out, or use chunk-bnce.")
    parts = [hidden, targets, None if mask is None else _as_mask(mask), streams]
    if len(shape) == 1:
        return [None if part is None else part.unsqueeze(0) for part in parts]
    return [part if part is None or not layer.batch_first else part.transpose(0, 1) for part in parts]


def word_ids(words: Tensor, name: str) -> Tensor:
    """Take whole numbers of any width as word ids; what is none is refused."""
    if not isinstance(words, Tensor):
        raise UserError(f"{name} are a {type(words).__name__}: give a tensor of word ids.")
    if words.dtype == torch.bool or words.is_floating_point() or words.is_complex():
        raise UserError(f"{name} are of the type {words.dtype}: give word ids as whole numbers, such as {name}.long().")
    return words.long()


def check_hidden(hidden: Tensor) -> None:
    """Refuse hidden states that are no floating-point numbers."""
    if not isinstance(hidden, Tensor) or not hidden.is_floating_point():
        found = hidden.dtype if isinstance(hidden, Tensor) else type(hidden).__name__
        raise UserError(f"hidden is of the type {found}: give a tensor of floating-point numbers.")


def _as_mask(mask: Tensor) -> Tensor:
    """Refuse weights: a position counts or does not. A GPU's host would have to wait to know."""
    if mask.is_floating_point() and mask.device.type == "cpu" and not torch.compiler.is_compiling():
        weights = mask[(mask != 0) & (mask != 1)]
        if weights.numel():
            raise UserError(
                f"The mask holds {weights.flatten()[0].item():g}: give 1 where a position counts and 0 elsewhere. For "
                'weights, use reduction="none" and multiply the losses by them.'
            )
    return mask.bool()


def check_noise(loss: Loss, noise: Noise, drawn: Noise | None, ignore_index: int) -> None:
    """Refuse noise that cannot be what the loss sees: it would train a wrong model without a word."""
    num_noise = getattr(loss, "num_noise", 0)
    if loss.batch_noise != "none" and noise.bent:
        drawing = " or ".join(
            name for name, other in LOSSES.items() if "noise" in other.__struct_fields__ and other().normalises
        )
        also = ", give this noise as drawn" if num_noise else ""
        raise UserError(
            f"The loss {loss.name} takes the other targets of the batch as noise, so {noise.bent} would "
            "train a wrong model. Give how often each class is a target (bnce.noise.from_targets counts them)"
            f"{also}, or use the losses {drawing}, which draw their noise."
        )
    log_probs_V, is_class = noise.log_probs_V, 0 <= ignore_index < len(noise) and loss.batch_noise != "none"
    if is_class and not log_probs_V.is_meta and log_probs_V[ignore_index] > log_probs_V.min() + 0.1:
        raise UserError(
            f"ignore_index is {ignore_index}, but the noise counts this class among the targets: leave it out of the "
            f"counts, as bnce.noise.from_targets(…, ignore_index={ignore_index}) does."
        )
    if drawn is not None and (loss.batch_noise == "none" or not num_noise):
        raise UserError(
            f"drawn is for bnce with num_noise above 0, but the loss is {loss}: leave it out, or give it as noise."
        )
    if drawn is not None and len(drawn) != len(noise):
        raise UserError(f"drawn covers {len(drawn)} words but vocab_size is {len(noise)}.")
