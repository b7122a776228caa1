"""Chunk softmax: a softmax over the columns of chunk B-NCE, which learns to be normalised by the constant Z.

Ours. A position's candidates are its own target and the targets of the other streams, at all time steps of the chunk;
each score is corrected by its noise probability, the target's, too. The noise columns also estimate Z(context): on
average over noise, exp(h·w + c) / p_n(w) is the sum over the vocabulary. A penalty holds that estimate at the constant:

    s_ij  = h_i·w_j + c_j − ln Z − ln(M · p_n(w_j))
    a_i   = ln Σ_{j in other streams} exp s_ij                estimates ln Z(context) − ln Z
    J     = Σ_i [ ln(exp a_i + exp s_ii) − s_ii + λ·a_i² ]

λ is `penalty`. With λ = 0 nothing holds Z(context), and probabilities need the sum over the vocabulary. As in chunk
B-NCE, a position's own stream is left out by position, and words that equal its target stay.

Own words are never taken out of a sum they are in: where a target dominates it, nothing of the rest would be left. They
are taken out of the counts before exp.

Legend: T time steps, B streams, N = T·B positions, R positions of a block, U different words.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce import kernels
from bnce.losses.chunk_nce import Rule, all_scores, chunk_loss, noise_pairs
from bnce.losses.merged_chunk_nce import Places
from bnce.losses.output_batch import OutputBatch
from bnce.machine.precision import at_least_float32


def chunk_softmax(batch: OutputBatch) -> Tensor:
    """Sum the chunk softmax loss over the positions that count."""
    return chunk_loss(batch, _rule(batch.penalty))


def chunk_softmax_each(batch: OutputBatch) -> Tensor:
    """Compute the loss of every position (T, B), with every score at once."""
    score_NN, stream_N = all_scores(batch)
    counts_N = stream_N >= 0
    # A position that does not count finds everything to be noise, of score 0: a sum over nothing has no gradient.
    noise_NN = noise_pairs(stream_N, stream_N) | ~counts_N.unsqueeze(1)
    score_NN = score_NN.masked_fill(~counts_N.unsqueeze(1), 0.0)
    estimate_N = score_NN.masked_fill(~noise_NN, -torch.inf).logsumexp(1)
    loss_N = F.softplus(estimate_N - score_NN.diagonal()) + batch.penalty * estimate_N.square()
    return torch.where(counts_N, loss_N, 0.0).reshape(batch.target_TB.shape)


def _rule(penalty: float) -> Rule:
    return Rule(
        functools.partial(loss_and_gradient_, penalty=penalty),
        functools.partial(merged_loss_and_gradient_, penalty=penalty),
    )


@kernels.with_twin("chunk_softmax")
def loss_and_gradient_(
    product_RN: Tensor, offset_N: Tensor, stream_N: Tensor, log_num_noise_N: Tensor, begin: int, penalty: float
) -> Tensor:
    """Compute the loss of the positions from `begin` on; in the products' place comes the gradient of their scores."""
    block = slice(begin, begin + len(product_RN))
    stream_R = stream_N[block]
    score_RN = at_least_float32(product_RN) + offset_N - log_num_noise_N[block].unsqueeze(1)
    noise_RN = noise_pairs(stream_R, stream_N)
    loss_R, share_RN, pull_R, push_R = _softmax(score_RN, score_RN.diagonal(begin), noise_RN.log(), penalty)
    product_RN.copy_(share_RN.mul_(pull_R.unsqueeze(1)))
    product_RN.diagonal(begin).copy_(-push_R)  # a position is no noise to itself
    product_RN.masked_fill_((stream_R < 0).unsqueeze(1), 0.0)  # where nothing counts, shares of the noise are NaN
    return torch.where(stream_R >= 0, loss_R, 0.0).sum()


def merged_loss_and_gradient_(
    product_RU: Tensor, offset_U: Tensor, count_U: Tensor, places: Places, begin: int, *, penalty: float
) -> Tensor:
    """Compute the same with a column for every different word, which stands for as many as there are of it."""
    block = slice(begin, begin + len(product_RU))
    stream_R = places.stream_N[block]
    own_RL = places.of_stream[:, stream_R.clamp(min=0)].t()  # the columns of a position's own stream
    target_R1 = places.target_N[block].unsqueeze(1)
    score_RU = at_least_float32(product_RU).add_(offset_U)
    if places.log_num_noise_N is not None:
        score_RU.sub_(places.log_num_noise_N[block].unsqueeze(1))
    others_RU = count_U.to(score_RU.dtype).repeat(len(score_RU), 1)
    others_RU.scatter_add_(1, own_RL.clamp(min=0), -(own_RL >= 0).to(score_RU.dtype))
    target_score_R = score_RU.gather(1, target_R1).squeeze(1)
    loss_R, share_RU, pull_R, push_R = _softmax(score_RU, target_score_R, others_RU.log_(), penalty)
    gradient_RU = share_RU.mul_(pull_R.unsqueeze(1)).scatter_add_(1, target_R1, -push_R.unsqueeze(1))
    if places.log_num_noise_N is not None:
        gradient_RU = torch.where((stream_R >= 0).unsqueeze(1), gradient_RU, 0.0)
        loss_R = torch.where(stream_R >= 0, loss_R, 0.0)
    product_RU.copy_(gradient_RU)
    return loss_R.sum()


def _softmax(
    score_RU: Tensor, target_score_R: Tensor, log_weight_RU: Tensor, penalty: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Give the loss, each column's share of the noise, and the gradients of the noise's logarithm and −the target's."""
    target_score_R = target_score_R.clone()
    weighted_RU = score_RU.add(log_weight_RU)
    estimate_R = weighted_RU.logsumexp(1)
    lead_R = estimate_R - target_score_R
    loss_R = F.softplus(lead_R) + penalty * estimate_R.square()
    push_R = torch.sigmoid(lead_R)
    share_RU = weighted_RU.sub_(estimate_R.unsqueeze(1)).exp_()
    return loss_R, share_RU, push_R + 2 * penalty * estimate_R, push_R
