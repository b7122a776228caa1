"""What an output layer is called with: tensors of types and shapes that fit, time steps first.

Legend: T time steps, B streams, N positions, D hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnce.errors import UserError
from bnce.registry import Loss


def word_ids(words: Tensor, name: str) -> Tensor:
    """Take whole numbers of any width as word ids; what is none is refused."""
    if not isinstance(words, Tensor):
        raise UserError(f"{name} are a {type(words).__name__}: give a tensor of word ids.")
    if words.dtype == torch.int64:
        return words
    if words.dtype == torch.bool or words.is_floating_point() or words.is_complex():
        raise UserError(f"{name} are of the type {words.dtype}: give word ids as whole numbers, such as {name}.long().")
    return words.long()


def as_chunk(
    loss: Loss,
    hidden_size: int,
    hidden: Tensor,
    targets: Tensor,
    mask: Tensor | None,
    streams: Tensor | None,
    *,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Check types and shapes, and put the time steps first; (N, D) is one step."""
    targets, shape = word_ids(targets, "targets"), targets.shape
    _check_hidden(hidden)
    if len(shape) not in (1, 2) or hidden.shape != (*shape, hidden_size):
        sizes = "B, T" if batch_first else "T, B"
        raise UserError(
            f"hidden {tuple(hidden.shape)} and targets {tuple(shape)} do not fit: "
            f"give ({sizes}, {hidden_size}) with ({sizes}), or (N, {hidden_size}) with (N,)."
        )
    for name, given in (("mask", mask), ("streams", streams)):
        if given is None:
            continue
        if not isinstance(given, Tensor):
            raise UserError(f"{name} is a {type(given).__name__}: give a tensor of the shape of targets.")
        if given.shape != shape:
            raise UserError(f"{name} {tuple(given.shape)} must have the shape of targets, {tuple(shape)}.")
    if mask is not None:
        _check_mask(mask)
    if streams is not None and loss.batch_noise != "streams":
        raise UserError(f"The loss {loss.name} uses no streams: leave them out, or use chunk-bnce.")
    if len(shape) == 2 and not batch_first:
        return hidden, targets, mask, streams

    def arrange(tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(0) if len(shape) == 1 else tensor.transpose(0, 1)

    return (
        arrange(hidden),
        arrange(targets),
        None if mask is None else arrange(mask),
        None if streams is None else arrange(streams),
    )


def as_positions(hidden: Tensor, hidden_size: int) -> Tensor:
    """Put hidden states (…, D) in one dimension (N, D)."""
    _check_hidden(hidden)
    if hidden.shape[-1:] != (hidden_size,):
        raise UserError(f"hidden {tuple(hidden.shape)} does not fit: give (…, {hidden_size}).")
    return hidden if hidden.ndim == 2 else hidden.reshape(-1, hidden_size)


def lacks_noise(loss: Loss, num_streams: int, streams: Tensor | None) -> bool:
    """Say whether a batch with so many targets side by side has no noise for any of its positions."""
    return loss.batch_noise != "none" and num_streams + getattr(loss, "num_noise", 0) < 2 and streams is None


def no_noise(loss: Loss, num_streams: int) -> str:
    """Say that no position of a batch has noise, and so no loss."""
    batch = "one stream" if loss.batch_noise == "streams" else f"a time step of {num_streams} target"
    drawn = ", or set num_noise above 0" if hasattr(loss, "num_noise") else ""
    return (
        f"The loss {loss.name} takes the other targets of the batch as noise, but this batch has {batch}: its loss is "
        f"0, and nothing is learned from it. Use batches of 2 or more{drawn}, or leave out such a batch."
    )


def _check_hidden(hidden: Tensor) -> None:
    if not isinstance(hidden, Tensor) or not hidden.is_floating_point():
        found = hidden.dtype if isinstance(hidden, Tensor) else type(hidden).__name__
        raise UserError(f"hidden is of the type {found}: give a tensor of floating-point numbers.")


def _check_mask(mask: Tensor) -> None:
    """Refuse weights: a position counts or does not. A GPU's host would have to wait to know."""
    if not mask.is_floating_point() or mask.device.type != "cpu" or torch.compiler.is_compiling():
        return
    weights = mask[(mask != 0) & (mask != 1)]
    if weights.numel():
        raise UserError(
            f"The mask holds {weights.flatten()[0].item():g}: give 1 where a position counts and 0 elsewhere. For "
            'weights, use reduction="none" and multiply the losses by them.'
        )
