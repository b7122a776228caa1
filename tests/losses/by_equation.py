"""Every loss of a whole batch by the paper's equations, in float64.

Noise is drawn in the same order as in the loss, so the same seed gives both the same words.

Legend: T time steps, B streams, N = T·B positions, K noise words, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bnce import OutputBatch
from tests.losses import reference, reference_exact


def sampled_softmax(batch: OutputBatch) -> Tensor:
    """A softmax over a position's own target and the words that all positions share, corrected by ln Q."""
    probs_V = batch.noise.log_probs_V.cpu().double().exp()
    if batch.tries is None:
        drawn, expected_V = batch.noise.sample((batch.num_noise,)).cpu(), batch.num_noise * probs_V
    else:
        num_draws = batch.tries.num_draws
        drawn, expected_V = batch.noise.sample((num_draws,)).cpu().unique(), 1 - (1 - probs_V) ** num_draws
    return reference.sampled_softmax_loss(*_flat(batch), drawn, expected_V, batch.tries is not None)


def negative_sampling(batch: OutputBatch) -> Tensor:
    """A position's own target told from the words that all positions share, by raw scores."""
    return reference.negative_sampling_loss(*_flat(batch), batch.noise.sample((batch.num_noise,)).cpu())


def blackout(batch: OutputBatch) -> Tensor:
    """A weighted softmax over a position's own target and the words that all positions share, told apart one by one."""
    drawn_K, probs_V = batch.noise.sample((batch.num_noise,)).cpu(), batch.noise.log_probs_V.cpu().double().exp()
    return reference.blackout_loss(*_flat(batch), drawn_K, probs_V)


def batch_nce(batch: OutputBatch) -> Tensor:
    """Eqs. (7) to (12): the other targets of a time step, and K words that its positions share."""
    T, K = len(batch.target_TB), batch.num_noise
    drawn_TK = (batch.drawn or batch.noise).sample((T, K)).cpu() if K else torch.zeros(T, 0, dtype=torch.long)
    return _over_steps(batch, reference.batch_nce_loss, drawn_TK)


def chunk_nce(batch: OutputBatch) -> Tensor:
    """Eq. (5) with the targets of the other streams of the chunk."""
    return reference.chunk_nce_loss(*_on_cpu(batch), _probs(batch), float(batch.log_z))


def adaptive_softmax(batch: OutputBatch) -> Tensor:
    """The head's softmax, and behind its last entries those of the tails."""
    structure: Any = batch.structure
    hidden_ND, weight_VD, bias_V, target_N = _flat(batch)
    tails = [(tail.projection.cpu(), tail.weight.cpu(), tail.bias.cpu()) for tail in structure.all_tails()]
    return reference_exact.loss(
        hidden_ND,
        structure.place_V.cpu()[target_N],
        lambda hidden_D: reference_exact.adaptive_softmax(hidden_D, weight_VD, bias_V, tails),
    )


def hierarchical_softmax(batch: OutputBatch) -> Tensor:
    """The product of the choices on the path to a word."""
    structure: Any = batch.structure
    hidden_ND, weight_VD, bias_V, target_N = _flat(batch)
    choices = structure.tree.choice_V.tolist(), structure.tree.choice_R.tolist()
    return reference_exact.loss(
        hidden_ND,
        target_N,
        lambda hidden_D: reference_exact.hierarchical_softmax(hidden_D, weight_VD, bias_V, *choices),
    )


def class_softmax(batch: OutputBatch) -> Tensor:
    """The softmax over classes times that over the words of a class."""
    structure: Any = batch.structure
    hidden_ND, weight_VD, bias_V, target_N = _flat(batch)
    words = structure.words_weight.cpu()[: structure.vocab_size], structure.words_bias.cpu()[: structure.vocab_size]
    return reference_exact.loss(
        hidden_ND,
        structure.place_V.cpu()[target_N],
        lambda hidden_D: reference_exact.class_softmax(hidden_D, weight_VD, bias_V, *words, structure.class_size),
    )


def _over_steps(batch: OutputBatch, loss: Callable[..., Tensor], drawn_T: Tensor) -> Tensor:
    hidden_TBD, weight_VD, bias_V, target_TB = _on_cpu(batch)
    log_z, probs_V = float(batch.log_z), _probs(batch)
    losses = [
        loss(hidden_BD, weight_VD, bias_V, target_B, drawn, probs_V, log_z)
        for hidden_BD, target_B, drawn in zip(hidden_TBD, target_TB, drawn_T, strict=True)
    ]
    return torch.stack(losses).sum()


def _probs(batch: OutputBatch) -> Tensor:
    probs_V = batch.noise.log_probs_V.cpu().double().exp()
    if batch.drawn is None:
        return probs_V
    others, K = batch.target_TB.shape[1] - 1, batch.num_noise
    return (others * probs_V + K * batch.drawn.log_probs_V.cpu().double().exp()) / (others + K)


def _flat(batch: OutputBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Give hidden rows (N, D), weight, bias and targets (N,), as the reference takes them."""
    hidden_TBD, weight_VD, bias_V, target_TB = _on_cpu(batch)
    return hidden_TBD.flatten(0, 1), weight_VD, bias_V, target_TB.flatten()


def _on_cpu(batch: OutputBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return batch.hidden_TBD.cpu(), batch.weight_VD.cpu(), batch.bias_V.cpu(), batch.target_TB.cpu()
