"""Chunk B-NCE: the targets of all T time steps are noise to a position, except those of its own stream.

Our extension of the paper. In B-NCE the noise of a position is the B − 1 other targets of its own time step. The
targets of the other time steps follow the same unigram, so here they are noise, too: M = (B − 1)·T noise words from the
same T·B output rows. The position's own stream is left out, by position and never by word: within a few dozen words a
rare word repeats far more often than its unigram rate, and noise must not depend on the context.

    s_ij = h_i·w_j + c_j − ln Z − ln(M · p_n(w_j))
    J    = Σ_i [ softplus(−s_ii) + Σ_{j in other streams} softplus(s_ij) ]

Positions are visited in blocks, so no N × N matrix is ever in memory, and each visit computes loss and gradient. Where
shapes allow it, equal words are merged first (`merged_chunk_nce.py`; on a GPU `fused_chunk_nce.py`). `all_pairs_nce` is
the plain twin of all of them.

Legend: T time steps, B streams, N = T·B positions in the order t·B + b, R positions of a block, D hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce import kernels
from bnce.errors import UserError
from bnce.losses import merged_chunk_nce
from bnce.losses.blocked import blocked_loss
from bnce.losses.counted import Counted
from bnce.losses.merged_chunk_nce import merged_chunk_loss
from bnce.losses.output_batch import OutputBatch
from bnce.machine.precision import at_least_float32


def chunk_nce(batch: OutputBatch) -> Tensor:
    """Sum the chunk B-NCE loss over the positions that count."""
    return chunk_loss(batch, NCE)


def all_pairs_nce(batch: OutputBatch) -> Tensor:
    """Compute the same with every score at once."""
    return chunk_nce_each(batch).sum()


def chunk_nce_each(batch: OutputBatch) -> Tensor:
    """Compute the loss of every position (T, B), with every score at once."""
    score_NN, stream_N = all_scores(batch)
    noise_NN = noise_pairs(stream_N, stream_N)
    loss_N = F.softplus(-score_NN.diagonal()) + torch.where(noise_NN, F.softplus(score_NN), 0.0).sum(1)
    return torch.where(stream_N >= 0, loss_N, 0.0).reshape(batch.target_TB.shape)


def chunk_loss(batch: OutputBatch, rule: Rule) -> Tensor:
    """Sum a loss over the columns of a chunk: equal words merged on a CPU, else one column per position."""
    check_streams(batch)
    merges = batch.target_TB.device.type == "cpu" and not torch.compiler.is_compiling()
    if merges:
        batch = _without_holes(batch)
    if batch.target_TB.numel() == 0:
        return all_pairs_nce(batch)  # zero, of nothing, with gradients of zero
    return merged_chunk_loss(batch, rule.merged) if merges else chunk_loss_by_position(batch, rule)


def chunk_loss_by_position(batch: OutputBatch, rule: Rule) -> Tensor:
    """Compute a loss with a column for every position, at shapes that do not depend on the data."""
    hidden_ND, weight_ND, offset_N = _flatten(batch)
    stream_N, log_num_noise_N = streams_of(batch)

    def rule_of_block(product_RN: Tensor, offset_N: Tensor, _: Tensor | None, begin: int) -> tuple[Tensor, None]:
        return rule.by_position(product_RN, offset_N, stream_N, log_num_noise_N, begin), None

    return blocked_loss(hidden_ND, weight_ND, offset_N, rule_of_block)


def all_scores(batch: OutputBatch) -> tuple[Tensor, Tensor]:
    """Compute every score s (N, N) at once, and give the stream of every position."""
    check_streams(batch)
    hidden_ND, weight_ND, offset_N = _flatten(batch)
    stream_N, log_num_noise_N = streams_of(batch)
    product_NN = torch.matmul(hidden_ND.to(weight_ND.dtype), weight_ND.t())
    return at_least_float32(product_NN) + offset_N - log_num_noise_N.unsqueeze(1), stream_N


def streams_of(batch: OutputBatch) -> tuple[Tensor, Tensor]:
    """Give the stream of every position (N,), −1 where it does not count, and ln of the noise words that it sees."""
    T, B = batch.target_TB.shape
    counted = batch.count_streams()
    if counted is not None:
        return counted.stream_TB.reshape(-1), counted.log_num_noise.expand(T, B).reshape(-1)
    place_N = torch.arange(T * B, dtype=torch.int32, device=batch.target_TB.device)
    return place_N % B, torch.full((T * B,), math.log((B - 1) * T), dtype=batch.score_dtype, device=place_N.device)


def noise_pairs(stream_R: Tensor, stream_N: Tensor) -> Tensor:
    """Say which positions (R, N) are noise to which: those of other streams, if they count."""
    return (stream_R.unsqueeze(1) != stream_N) & (stream_N >= 0)


def _without_holes(batch: OutputBatch) -> OutputBatch:
    """Put the positions that count in one row, each with the number of its stream."""
    counted = batch.count_streams()
    if counted is None:
        return batch
    valid_TB = counted.is_trained
    kept = Counted(
        counted.target_TB[valid_TB].unsqueeze(0),
        counted.stream_TB[valid_TB].unsqueeze(0),
        counted.log_num_noise.expand(valid_TB.shape)[valid_TB].unsqueeze(0),
        counted.num_positions,
    )
    return replace(
        batch,
        hidden_TBD=batch.hidden_TBD[valid_TB].unsqueeze(0),
        target_TB=kept.target_TB,
        valid_TB=None,
        counted=kept,
        stream_TB=kept.stream_TB,
    )


def check_streams(batch: OutputBatch) -> None:
    """Refuse a batch in which no position can find noise; where positions are counted, none of them is trained on."""
    B = batch.target_TB.shape[1]
    if B < 2 and batch.stream_TB is None and batch.counted is None:
        raise UserError(f"Chunk B-NCE takes its noise from other streams, but the batch has {B}: use 2 or more.")
    if batch.num_noise:
        raise UserError(f"Chunk B-NCE draws no noise, but num_noise is {batch.num_noise}: set it to 0.")


def _flatten(batch: OutputBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Put all positions in one dimension, with the output rows and offsets of their targets, without ln M."""
    target_N = batch.target_TB.reshape(-1)
    weight_ND, bias_N = batch.output_rows(target_N)
    hidden_ND = batch.hidden_TBD.flatten(0, 1)
    offset_N = at_least_float32(bias_N) - batch.log_z - batch.noise.log_prob(target_N)
    return hidden_ND, weight_ND, offset_N


@kernels.with_twin("chunk_nce")
def loss_and_gradient_(
    product_RN: Tensor, offset_N: Tensor, stream_N: Tensor, log_num_noise_N: Tensor, begin: int
) -> Tensor:
    """Compute the loss of the positions from `begin` on; in the products' place comes σ(s) − I, own stream left out."""
    block = slice(begin, begin + len(product_RN))
    stream_R = stream_N[block]
    score_RN = at_least_float32(product_RN) + offset_N - log_num_noise_N[block].unsqueeze(1)
    other_RN = noise_pairs(stream_R, stream_N) & (stream_R >= 0).unsqueeze(1)
    own_R = score_RN.diagonal(begin)
    loss = torch.where(other_RN, F.softplus(score_RN), 0.0).sum()
    loss = loss + torch.where(stream_R >= 0, F.softplus(-own_R), 0.0).sum()
    torch.mul(torch.sigmoid(score_RN), other_RN, out=product_RN)
    product_RN.diagonal(begin).copy_((torch.sigmoid(own_R) - 1.0) * (stream_R >= 0))
    return loss


@dataclass(frozen=True)
class Rule:
    """What a block of products becomes, in place: the gradient of its scores, and the sum of its loss."""

    by_position: Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]  # a column per position
    merged: merged_chunk_nce.Merged  # a column per word


NCE = Rule(loss_and_gradient_, merged_chunk_nce.loss_and_gradient_)
