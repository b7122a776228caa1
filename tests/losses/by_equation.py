"""Losses of a whole batch by their equations, in float64.

Noise is drawn in the same order as in the loss, so the same seed gives both the same words.

Legend: T time steps, B streams, N = T·B positions, K noise words, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bnce import OutputBatch
from tests.losses import reference


def sampled_softmax(batch: OutputBatch) -> Tensor:
    """A softmax over a position's own target and the words that all positions share, corrected by ln Q."""
    probs_V = batch.noise.log_probs_V.double().exp()
    if batch.tries is None:
        drawn, expected_V = batch.noise.sample((batch.num_noise,)), batch.num_noise * probs_V
    else:
        num_draws = batch.tries.num_draws
        drawn, expected_V = batch.noise.sample((num_draws,)).unique(), 1 - (1 - probs_V) ** num_draws
    return reference.sampled_softmax_loss(*_flat(batch), drawn, expected_V, batch.tries is not None)


def batch_nce(batch: OutputBatch) -> Tensor:
    """Eqs. (7) to (12): the other targets of a time step, and K words that its positions share."""
    T, K = len(batch.target_TB), batch.num_noise
    drawn_TK = (batch.drawn or batch.noise).sample((T, K)) if K else torch.zeros(T, 0, dtype=torch.long)
    return _over_steps(batch, reference.batch_nce_loss, drawn_TK)


def chunk_nce(batch: OutputBatch) -> Tensor:
    """Eq. (5) with the targets of the other streams of the chunk."""
    layer = batch.weight_VD, batch.bias_V
    return reference.chunk_nce_loss(batch.hidden_TBD, *layer, batch.target_TB, _probs(batch), float(batch.log_z))


def adaptive_softmax(batch: OutputBatch) -> Tensor:
    """The head's softmax, and behind its last entries those of the tails."""
    structure: Any = batch.structure
    hidden_ND, weight_VD, bias_V, target_N = _flat(batch)
    tails = [(tail.projection, tail.weight, tail.bias) for tail in structure.all_tails()]
    losses = [
        -torch.log(reference.adaptive_softmax(hidden_D, weight_VD, bias_V, tails)[place])
        for hidden_D, place in zip(hidden_ND.double(), structure.place_V[target_N].tolist(), strict=True)
    ]
    return torch.stack(losses).sum()


def _over_steps(batch: OutputBatch, loss: Callable[..., Tensor], drawn_T: Tensor) -> Tensor:
    log_z, probs_V = float(batch.log_z), _probs(batch)
    losses = [
        loss(hidden_BD, batch.weight_VD, batch.bias_V, target_B, drawn, probs_V, log_z)
        for hidden_BD, target_B, drawn in zip(batch.hidden_TBD, batch.target_TB, drawn_T, strict=True)
    ]
    return torch.stack(losses).sum()


def _probs(batch: OutputBatch) -> Tensor:
    probs_V = batch.noise.log_probs_V.double().exp()
    if batch.drawn is None:
        return probs_V
    others, K = batch.target_TB.shape[1] - 1, batch.num_noise
    return (others * probs_V + K * batch.drawn.log_probs_V.double().exp()) / (others + K)


def _flat(batch: OutputBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Give hidden rows (N, D), weight, bias and targets (N,), as the reference takes them."""
    return batch.hidden_TBD.flatten(0, 1), batch.weight_VD, batch.bias_V, batch.target_TB.flatten()
