"""The chunk loss: the targets of all T time steps are noise to a position, except those of its own stream.

Our extension of the paper. In B-NCE the noise of a position is the B − 1 other targets of its own time step. The
targets of the other time steps follow the same unigram, so here they are noise, too: m = (B − 1)·T noise words from the
same T·B output rows. The position's own stream is left out, by position and never by word: within a few dozen words a
rare word repeats far more often than its unigram rate, and noise must not depend on the context.

    s_ij = h_i·w_j + c_j − ln Z − ln(m · p_n(w_j))
    a_i  = ln Σ_{j in other streams} exp s_ij            estimates ln Z(context) − ln Z
    J    = Σ_i (1 − β)·[ softplus(a_i − s_ii) + λ·a_i² ] + β·[ softplus(−s_ii) + Σ_{j in other streams} softplus(s_ij) ]

One family: β (`record.beta`) = 1 is chunk B-NCE; β = 0 is chunk softmax, in which the target is to rank above the
noise. Then only the penalty λ (`record.penalty`) holds Z(context) at the constant: on average over noise,
exp(h·w + c) / p_n(w) is the sum over the vocabulary.

In text, U different words stand for the N targets of a chunk, about a third of them. A word is one column, and counts
as noise as often as it occurs in other streams. These counts differ from row to row only in the words of the row's own
stream, which are taken out of the counts before exp, never out of a sum they are in: where a target dominates it,
nothing of the rest would be left. Where shapes must not depend on the data, every position has a column of its own.

Legend: T time steps, B streams, N = T·B positions, R rows of a block, U columns, S streams of L words at most.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce.kernels import usable
from bnce.losses.loss import Counted, OutputBatch, count_streams
from bnce.losses.scored import Block, finish, scored, scores, shares_
from bnce.noise import Noise

MIN_MERGED = 2048  # from so many positions on, kernels that merge equal words save more than it costs
ROUND = 128  # what tensor cores like a number of columns to be a multiple of


def chunk(batch: OutputBatch, record: Any) -> Tensor:
    """Compute the chunk loss of every position (T, B)."""
    words = batch.words()
    counted = count_streams(words.valid_TB, words.target_TB, batch.stream_TB, batch.score_dtype)
    found = columns(batch, words.target_TB, counted)
    shift_U, shift_TB = -batch.noise.log_prob(found.word_U), None
    if isinstance(counted.log_num_noise, Tensor):
        shift_TB = -counted.log_num_noise.expand(words.target_TB.shape)
    else:  # all positions see as many noise words
        shift_U = shift_U - counted.log_num_noise
    return scored(
        batch,
        words.that_count(counted.valid_TB),
        functools.partial(
            classification_or_ranking,
            count_U=found.count_U,
            own=found.own,
            beta=record.beta,
            penalty=record.penalty,
        ),
        log_z=batch.log_z,
        word_PM=found.word_U.unsqueeze(0),
        shift_PM=shift_U.where(found.count_U > 0, -torch.inf).unsqueeze(0),
        shift_TB=shift_TB,
        rows=(found.column_TB, found.stream_TB),
    )


class Columns(NamedTuple):
    """The words that a chunk is scored against, and which of them are of a position's own stream."""

    word_U: Tensor
    count_U: Tensor  # how often each is a target that counts, in the type of scores
    column_TB: Tensor  # the column of each position's target
    stream_TB: Tensor  # the stream of each position, as it is numbered in the rest
    own: tuple[Tensor, ...]  # `Own`, or where every position has a column of its own, the streams of columns (U,)


class Own(NamedTuple):
    """The columns of each stream's targets, side by side; a stream of few words repeats one."""

    column_LS: Tensor
    others_LS: Tensor  # how often such a word is a target of other streams
    once_LS: Tensor  # the same, 0 where the word is repeated


def columns(batch: OutputBatch, target_TB: Tensor, counted: Counted) -> Columns:
    """Find the columns of a chunk: its different words, or where shapes are fixed and no kernel finds them, all."""
    (T, B), has_kernels = target_TB.shape, usable(batch.weight_VD)
    if has_kernels and batch.stream_TB is None:
        num_columns = num_merged(batch.noise, T * B, batch.loss_state)
        if num_columns:
            from bnce.kernels.distinct import distinct_words

            word_U, column_TB, count_U = distinct_words(target_TB, num_columns, len(batch.noise), counted.valid_TB)
            stream_TB = torch.arange(B, device=target_TB.device).expand(T, B)
            return Columns(word_U, count_U, column_TB, stream_TB, (column_TB,))
    if target_TB.device.type == "cpu" and not torch.compiler.is_compiling() and not has_kernels:
        return _different_words(target_TB, counted, batch.score_dtype)
    place_TB = torch.arange(T * B, device=target_TB.device).view(T, B)
    stream_TB = place_TB % B if counted.stream_TB is None else counted.stream_TB
    valid_TB = torch.ones_like(target_TB, dtype=torch.bool) if counted.valid_TB is None else counted.valid_TB
    count_N = valid_TB.to(batch.score_dtype).reshape(-1)
    return Columns(target_TB.reshape(-1), count_N, place_TB, stream_TB, (stream_TB.reshape(-1),))


def num_merged(noise: Noise, num_positions: int, most: int | None) -> int:
    """Give the columns into which kernels merge equal words, so many as differ at most; 0: they do not."""
    if num_positions == 0 or (most is None and num_positions < MIN_MERGED):
        return 0
    return -(-(noise.max_distinct(num_positions) if most is None else most) // ROUND) * ROUND


def _different_words(target_TB: Tensor, counted: Counted, dtype: torch.dtype) -> Columns:
    """Find the different words, and lay the columns of each stream's targets side by side."""
    (T, B), valid_TB = target_TB.shape, counted.valid_TB
    place_TB = torch.arange(T * B).view(T, B)
    stream_TB = place_TB % B if counted.stream_TB is None else counted.stream_TB
    target_N, stream_N = target_TB.reshape(-1), stream_TB.reshape(-1)
    if valid_TB is not None:
        target_N, stream_N = target_N[valid_TB.reshape(-1)], stream_N[valid_TB.reshape(-1)]
    word_U, column_N, count_U = torch.unique(target_N, return_inverse=True, return_counts=True)
    _, stream_N = torch.unique(stream_N, return_inverse=True)
    # The different words of each stream, one stream after the other.
    pair_P, times_P = torch.unique(stream_N * len(word_U) + column_N, return_counts=True)
    column_P = pair_P % max(1, len(word_U))
    others_P = (count_U[column_P] - times_P).to(dtype)
    size_S = torch.bincount(pair_P // max(1, len(word_U)))
    place_L1 = torch.arange(int(size_S.max()) if len(size_S) else 0).unsqueeze(1)
    # Short streams repeat one of their words, which changes nothing.
    pair_LS = size_S.cumsum(0) - size_S + torch.minimum(place_L1, size_S - 1)
    others_LS = others_P[pair_LS]
    own = Own(column_P[pair_LS], others_LS, others_LS.where(place_L1 < size_S, 0.0))
    if valid_TB is None:
        column_TB, number_TB = column_N.view(T, B), stream_N.view(T, B)
    else:
        empty_TB = torch.zeros_like(target_TB)
        column_TB, number_TB = (empty_TB.masked_scatter(valid_TB, part_N) for part_N in (column_N, stream_N))
    return Columns(word_U, count_U.to(dtype), column_TB, number_TB, own)


def classification_or_ranking(
    block: Block, *, count_U: Tensor, own: tuple[Tensor, ...], beta: float, penalty: float
) -> Tensor:
    """Turn products into gradients of the scores, and give the loss of each row.

    `rows` are the columns of the targets and the rows' streams; the rest is of `Columns`.
    """
    if usable(block.product_PRM):
        from bnce.kernels.chunk import classification_or_ranking as fast

        return fast(block, count_U, own[0], beta=beta, penalty=penalty)
    target_R1, stream_R = block.rows[0][0].unsqueeze(1), block.rows[1][0]
    score_RU = scores(block)[0]
    target_score_R1 = score_RU.gather(1, target_R1)
    if is_merged := len(own) > 1:
        # Equal words of a stream write equal values below.
        own_RL, others_RL, once_RL = (part_LS[:, stream_R].t() for part_LS in own)
        own_score_RL = score_RU.gather(1, own_RL)
    else:
        score_RU.masked_fill_(stream_R.unsqueeze(1) == own[0], -torch.inf)
    loss_R1, gradient_RU = torch.zeros_like(target_score_R1), None
    if beta < 1:
        weighted_RU = score_RU + count_U.log() if beta else score_RU.add_(count_U.log())
        if is_merged:
            weighted_RU.scatter_(1, own_RL, own_score_RL + others_RL.log())
        estimate_R1 = shares_(weighted_RU.unsqueeze(0))[0]
        lead_R1 = estimate_R1 - target_score_R1
        loss_R1 = (1 - beta) * (F.softplus(lead_R1) + penalty * estimate_R1.square())
        push_R1 = (1 - beta) * torch.sigmoid(lead_R1)
        gradient_RU = weighted_RU.mul_(push_R1 + (1 - beta) * 2 * penalty * estimate_R1)
        gradient_RU.scatter_add_(1, target_R1, -push_R1)
    if beta > 0:
        if is_merged:
            score_RU.scatter_(1, own_RL, -torch.inf)
        loss_R1 = loss_R1 + beta * torch.mv(F.softplus(score_RU), count_U).unsqueeze(1)
        loss_R1 = loss_R1 + beta * F.softplus(-target_score_R1)
        sigma_RU = score_RU.sigmoid_().mul_(beta * count_U)
        if is_merged:
            loss_R1 = loss_R1 + beta * (once_RL * F.softplus(own_score_RL)).sum(1, keepdim=True)
            sigma_RU.scatter_(1, own_RL, beta * others_RL * torch.sigmoid(own_score_RL))
        sigma_RU.scatter_add_(1, target_R1, -beta * torch.sigmoid(-target_score_R1))
        gradient_RU = sigma_RU if gradient_RU is None else sigma_RU.add_(gradient_RU)
    assert gradient_RU is not None
    return finish(block, gradient_RU.unsqueeze(0), loss_R1.t())
