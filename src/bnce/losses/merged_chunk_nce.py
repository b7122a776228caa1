"""Chunk B-NCE with equal words merged.

The N targets of a chunk have U distinct words; in text U is about a third of N. A word that occurs m_u times becomes
one column with weight m_u. The targets of the position's own stream are subtracted:

    J = Σ_i [ softplus(−s_ii) + Σ_u m_u softplus(s_iu) − Σ_{j in own stream} softplus(s_ij) ]

This is the plain form's sum in another order. Shapes depend on the data, so this is for a CPU; `fused_chunk_nce.py`
does the same on a GPU.

Legend: T time steps, B streams, N = T·B positions, R positions of a block, U different words, D hidden, E = D padded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce.losses.blocked import blocked_loss
from bnce.losses.output_batch import OutputBatch
from bnce.machine.precision import at_least_float32


def merged_chunk_loss(batch: OutputBatch, rule: Merged) -> Tensor:
    """Sum a loss over the columns of a chunk, over the positions that count."""
    T, B = batch.target_TB.shape
    counted = batch.count_streams()
    word_U, column_TB, count_U = torch.unique(batch.target_TB, return_inverse=True, return_counts=True)
    weight_UD, bias_U = batch.output_rows(word_U)
    offset_U = at_least_float32(bias_U) - batch.log_z - batch.noise.log_prob(word_U)
    of_stream, log_num_noise_N = column_TB, None
    if counted is None:
        # Every position sees as many noise words.
        offset_U = offset_U - math.log((B - 1) * T)
        stream_N = torch.arange(T * B, dtype=torch.int32, device=column_TB.device) % B
    else:
        stream_N, log_num_noise_N = counted.stream_TB.reshape(-1), counted.log_num_noise.expand(T, B).reshape(-1)
        if batch.stream_TB is not None:
            stream_N, of_stream = _side_by_side(stream_N, column_TB.reshape(-1))
    places = Places(stream_N, column_TB.reshape(-1), of_stream, log_num_noise_N)

    def rule_of_block(product_RU: Tensor, offset_U: Tensor, _: Tensor | None, begin: int) -> tuple[Tensor, None]:
        return rule(product_RU, offset_U, count_U, places, begin), None

    return blocked_loss(batch.hidden_TBD.flatten(0, 1), weight_UD, offset_U, rule_of_block)


@dataclass(frozen=True)
class Places:
    """Where each position's own words are among the columns."""

    stream_N: Tensor  # which column of `of_stream` a position is of; −1: it does not count
    target_N: Tensor  # the column of a position's target
    of_stream: Tensor  # (L, S) the columns of each stream's targets; −1: none
    log_num_noise_N: Tensor | None  # ln of the noise words that a position sees; None: it is in the offset


# What a block of products becomes, in place: the gradient of its scores; it gives the sum of the block's loss.
Merged = Callable[[Tensor, Tensor, Tensor, Places, int], Tensor]


def _side_by_side(stream_N: Tensor, column_N: Tensor) -> tuple[Tensor, Tensor]:
    """Number the streams from 0, and lay the columns of each one's targets side by side (L, S)."""
    _, number_N, size_S = torch.unique(stream_N, return_inverse=True, return_counts=True)
    order_N = torch.argsort(number_N, stable=True)
    sorted_N = number_N[order_N]
    first_S = torch.cumsum(size_S, 0) - size_S
    place_N = torch.arange(len(stream_N), device=stream_N.device) - first_S[sorted_N]
    of_stream = column_N.new_full((int(size_S.max()), len(size_S)), -1)
    of_stream[place_N, sorted_N] = column_N[order_N]
    return torch.where(stream_N >= 0, number_N, -1), of_stream


def loss_and_gradient_(product_RU: Tensor, offset_U: Tensor, count_U: Tensor, places: Places, begin: int) -> Tensor:
    """Compute the loss of the positions from `begin` on; in the products' place comes the gradient of their scores."""
    block = slice(begin, begin + len(product_RU))
    stream_R = places.stream_N[block]
    own_RL = places.of_stream[:, stream_R.clamp(min=0)].t()  # the columns of a position's own stream
    target_R1 = places.target_N[block].unsqueeze(1)
    score_RU = at_least_float32(product_RU).add_(offset_U)
    if places.log_num_noise_N is not None:
        score_RU.sub_(places.log_num_noise_N[block].unsqueeze(1))
    count_U = count_U.to(score_RU.dtype)
    is_own_RL = own_RL >= 0
    own_RL = own_RL.clamp(min=0)
    own_score_RL, target_score_R1 = score_RU.gather(1, own_RL), score_RU.gather(1, target_R1)
    loss_R = torch.mv(F.softplus(score_RU), count_U) + F.softplus(-target_score_R1).squeeze(1)
    loss_R = loss_R - torch.where(is_own_RL, F.softplus(own_score_RL), 0.0).sum(1)
    gradient_RU = score_RU.sigmoid_().mul_(count_U)
    gradient_RU.scatter_add_(1, own_RL, -torch.sigmoid(own_score_RL) * is_own_RL)
    gradient_RU.scatter_add_(1, target_R1, torch.sigmoid(target_score_R1) - 1.0)
    if places.log_num_noise_N is not None:
        gradient_RU.mul_((stream_R >= 0).unsqueeze(1))
        loss_R = torch.where(stream_R >= 0, loss_R, 0.0)
    product_RU.copy_(gradient_RU)  # nothing to do where they are one
    return loss_R.sum()
