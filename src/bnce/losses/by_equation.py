"""Every loss of a whole batch by the paper's equations, in float64: what `bnce doctor` compares with.

Noise is drawn in the same order as in the loss, so the same seed gives both the same words.

Legend: T time steps, B streams, K noise words.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bnce.losses import reference, reference_exact
from bnce.losses.adaptive_softmax import AdaptiveSoftmax
from bnce.losses.class_softmax import ClassSoftmax
from bnce.losses.hierarchical_softmax import HierarchicalSoftmax
from bnce.losses.output_batch import OutputBatch


def softmax(batch: OutputBatch) -> Tensor:
    """Eq. (1), summed over all positions."""
    hidden_TBD, target_TB, weight_VD, bias_V = _on_cpu(batch)
    return reference.softmax_loss(hidden_TBD.flatten(0, 1), weight_VD, bias_V, target_TB.flatten())


def self_normalised_softmax(batch: OutputBatch) -> Tensor:
    """Eq. (1) with the penalty, summed over all positions."""
    hidden_TBD, target_TB, weight_VD, bias_V = _on_cpu(batch)
    hidden_ND, target_N, log_z = hidden_TBD.flatten(0, 1), target_TB.flatten(), float(batch.log_z)
    return reference.self_normalised_softmax_loss(hidden_ND, weight_VD, bias_V, target_N, log_z, batch.penalty)


def nce(batch: OutputBatch) -> Tensor:
    """Eq. (5) with K words of its own for each position."""
    if not batch.noise.follows:
        drawn_TBK = batch.noise.sample((*batch.target_TB.shape, batch.num_noise)).cpu()
        return _over_steps(batch, reference.sampled_nce_loss, drawn_TBK)
    assert batch.before_TB is not None
    hidden_TBD, target_TB, weight_VD, bias_V = _on_cpu(batch)
    drawn_TBK = batch.noise.sample_after(batch.before_TB, batch.num_noise).cpu()
    all_TBV = torch.arange(len(bias_V), device=batch.before_TB.device).expand(*target_TB.shape, -1)
    probs_TBV = batch.noise.log_prob_after(batch.before_TB, all_TBV).cpu().double().exp()
    return _over_positions(hidden_TBD, target_TB, weight_VD, bias_V, drawn_TBK, probs_TBV, batch.log_z)


def shared_nce(batch: OutputBatch) -> Tensor:
    """Eq. (5) with K words that the positions of a time step share."""
    T, B = batch.target_TB.shape
    drawn_TK = batch.noise.sample((T, batch.num_noise)).cpu()
    return _over_steps(batch, reference.sampled_nce_loss, drawn_TK.unsqueeze(1).expand(T, B, -1))


def sampled_softmax(batch: OutputBatch) -> Tensor:
    """A softmax over a position's own target and the words that all positions share, corrected by ln Q."""
    hidden_TBD, target_TB, weight_VD, bias_V = _on_cpu(batch)
    probs_V = batch.noise.log_probs_V.cpu().double().exp()
    if batch.tries is None:
        drawn, expected_V = batch.noise.sample((batch.num_noise,)).cpu(), batch.num_noise * probs_V
    else:
        num_draws = batch.tries.num_draws
        drawn, expected_V = batch.noise.sample((num_draws,)).cpu().unique(), 1 - (1 - probs_V) ** num_draws
    return reference.sampled_softmax_loss(
        hidden_TBD.flatten(0, 1), weight_VD, bias_V, target_TB.flatten(), drawn, expected_V, batch.remove_hits
    )


def negative_sampling(batch: OutputBatch) -> Tensor:
    """A position's own target told from the words that all positions share, by raw scores."""
    hidden_TBD, target_TB, weight_VD, bias_V = _on_cpu(batch)
    drawn_K = batch.noise.sample((batch.num_noise,)).cpu()
    return reference.negative_sampling_loss(hidden_TBD.flatten(0, 1), weight_VD, bias_V, target_TB.flatten(), drawn_K)


def blackout(batch: OutputBatch) -> Tensor:
    """A weighted softmax over a position's own target and the words that all positions share, told apart one by one."""
    hidden_TBD, target_TB, weight_VD, bias_V = _on_cpu(batch)
    drawn_K, probs_V = batch.noise.sample((batch.num_noise,)).cpu(), batch.noise.log_probs_V.cpu().double().exp()
    return reference.blackout_loss(hidden_TBD.flatten(0, 1), weight_VD, bias_V, target_TB.flatten(), drawn_K, probs_V)


def batch_nce(batch: OutputBatch) -> Tensor:
    """Eqs. (7) to (12): the other targets of a time step, and K words that its positions share."""
    T, K = len(batch.target_TB), batch.num_noise
    drawn_TK = (batch.drawn or batch.noise).sample((T, K)).cpu() if K else torch.zeros(T, 0, dtype=torch.long)
    return _over_steps(batch, reference.batch_nce_loss, drawn_TK)


def chunk_nce(batch: OutputBatch) -> Tensor:
    """Eq. (5) with the targets of the other streams of the chunk."""
    hidden_TBD, target_TB, weight_VD, bias_V = _on_cpu(batch)
    return reference.chunk_nce_loss(hidden_TBD, weight_VD, bias_V, target_TB, _probs(batch), float(batch.log_z))


def chunk_softmax(batch: OutputBatch) -> Tensor:
    """A softmax over a position's own target and the targets of the other streams, with the penalty."""
    hidden_TBD, target_TB, weight_VD, bias_V = _on_cpu(batch)
    log_z, penalty = float(batch.log_z), batch.penalty
    return reference.chunk_softmax_loss(hidden_TBD, weight_VD, bias_V, target_TB, _probs(batch), log_z, penalty)


def adaptive_softmax(batch: OutputBatch) -> Tensor:
    """The head's softmax, and behind its last entries those of the tails."""
    structure = batch.structure
    assert isinstance(structure, AdaptiveSoftmax)
    hidden_TBD, target_TB, weight_VD, bias_V = _on_cpu(batch)
    tails = [(tail.projection.cpu(), tail.weight.cpu(), tail.bias.cpu()) for tail in structure.all_tails()]
    place_N = structure.place_V.cpu()[target_TB.flatten()]
    return reference_exact.loss(
        hidden_TBD.flatten(0, 1),
        place_N,
        lambda hidden_D: reference_exact.adaptive_softmax(hidden_D, weight_VD, bias_V, tails),
    )


def hierarchical_softmax(batch: OutputBatch) -> Tensor:
    """The product of the choices on the path to a word."""
    structure = batch.structure
    assert isinstance(structure, HierarchicalSoftmax)
    hidden_TBD, target_TB, weight_VD, bias_V = _on_cpu(batch)
    choices = structure.tree.choice_V.tolist(), structure.tree.choice_R.tolist()
    return reference_exact.loss(
        hidden_TBD.flatten(0, 1),
        target_TB.flatten(),
        lambda hidden_D: reference_exact.hierarchical_softmax(hidden_D, weight_VD, bias_V, *choices),
    )


def class_softmax(batch: OutputBatch) -> Tensor:
    """The softmax over classes times that over the words of a class."""
    structure = batch.structure
    assert isinstance(structure, ClassSoftmax)
    hidden_TBD, target_TB, weight_VD, bias_V = _on_cpu(batch)
    words = structure.words_weight.cpu()[: structure.vocab_size], structure.words_bias.cpu()[: structure.vocab_size]
    return reference_exact.loss(
        hidden_TBD.flatten(0, 1),
        structure.place_V.cpu()[target_TB.flatten()],
        lambda hidden_D: reference_exact.class_softmax(hidden_D, weight_VD, bias_V, *words, structure.class_size),
    )


def _over_steps(batch: OutputBatch, loss: Callable[..., Tensor], drawn_T: Tensor) -> Tensor:
    hidden_TBD, target_TB, weight_VD, bias_V = _on_cpu(batch)
    log_z, probs_V = float(batch.log_z), _probs(batch)
    losses = [
        loss(hidden_BD, weight_VD, bias_V, target_B, drawn, probs_V, log_z)
        for hidden_BD, target_B, drawn in zip(hidden_TBD, target_TB, drawn_T, strict=True)
    ]
    return torch.stack(losses).sum()


def _over_positions(
    hidden_TBD: Tensor,
    target_TB: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    drawn_TBK: Tensor,
    probs_TBV: Tensor,
    log_z: Tensor,
) -> Tensor:
    losses = [
        reference.sampled_nce_loss(
            hidden_TBD[t, b, None],
            weight_VD,
            bias_V,
            target_TB[t, b, None],
            drawn_TBK[t, b, None],
            probs_TBV[t, b],
            log_z,
        )
        for t in range(len(target_TB))
        for b in range(target_TB.shape[1])
    ]
    return torch.stack(losses).sum()


def _probs(batch: OutputBatch) -> Tensor:
    probs_V = batch.noise.log_probs_V.cpu().double().exp()
    if batch.drawn is None:
        return probs_V
    others, K = batch.target_TB.shape[1] - 1, batch.num_noise
    return (others * probs_V + K * batch.drawn.log_probs_V.cpu().double().exp()) / (others + K)


def _on_cpu(batch: OutputBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return batch.hidden_TBD.cpu(), batch.target_TB.cpu(), batch.weight_VD.cpu(), batch.bias_V.cpu()
