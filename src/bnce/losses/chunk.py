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
as noise as often as it occurs in other streams. The words of a row's own stream are taken out of these counts before
exp, never out of a sum they are in: where a target dominates it, nothing of the rest would be left. Where shapes must
not depend on the data, every position has a column of its own.

Legend: T time steps, B streams, N = T·B positions, R rows of a block, U columns, s different streams of these rows.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce.kernels import usable
from bnce.losses.loss import OutputBatch, count_noise
from bnce.losses.scored import Block, finish, scored, scores, shares_
from bnce.noise import Noise

MIN_MERGED = 2048  # from so many positions on, kernels that merge equal words save more than it costs
ROUND = 128  # what tensor cores like a number of columns to be a multiple of


def chunk(batch: OutputBatch, record: Any) -> Tensor:
    """Compute the chunk loss of every position (T, B)."""
    words = batch.words()
    target_TB, stream_TB = words.target_TB, batch.stream_TB
    place_TB = torch.arange(target_TB.numel(), device=target_TB.device).view(target_TB.shape)
    stream_TB = place_TB % target_TB.shape[1] if stream_TB is None else stream_TB.long()
    valid_TB, log_num_noise = count_noise(batch, words.valid_TB)
    word_U, count_U, column_TB = columns(batch, target_TB, valid_TB)
    rows, shift_U = [place_TB if column_TB is None else column_TB, stream_TB], -batch.noise.log_prob(word_U)
    if isinstance(log_num_noise, Tensor):
        rows.append(-log_num_noise.expand(target_TB.shape))
    else:  # all positions see as many noise words
        shift_U = shift_U - log_num_noise
    found: dict[str, Any] = {"count_U": count_U, "column_TB": column_TB, "stream_TB": stream_TB}
    return scored(
        batch,
        words.that_count(valid_TB),
        functools.partial(classification_or_ranking, **found, beta=record.beta, penalty=record.penalty),
        word_PM=word_U.unsqueeze(0),
        shift_PM=shift_U.where(count_U > 0, -torch.inf).unsqueeze(0),
        log_z=batch.log_z,
        rows=rows,
    )


def columns(batch: OutputBatch, target_TB: Tensor, valid_TB: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Find the columns of a chunk: its different words, or where shapes are fixed and no kernel finds them, all.

    Give their words (U,), how often each is a target that counts, and the column of each position, below 0 where it
    does not count; None: every position has a column of its own.
    """
    has_kernels = usable(batch.weight_VD)
    if has_kernels and batch.stream_TB is None:
        num_columns = num_merged(batch.noise, target_TB.numel(), batch.loss_state)
        if num_columns:
            from bnce.kernels.distinct import distinct_words

            word_U, column_TB, count_U = distinct_words(target_TB, num_columns, len(batch.noise), valid_TB)
            return word_U, count_U, column_TB
    valid_TB = torch.ones_like(target_TB, dtype=torch.bool) if valid_TB is None else valid_TB
    if target_TB.device.type == "cpu" and not torch.compiler.is_compiling() and not has_kernels:
        word_U, column_N, count_U = torch.unique(target_TB[valid_TB], return_inverse=True, return_counts=True)
        column_TB = torch.full_like(target_TB, -1).masked_scatter_(valid_TB, column_N)
        return word_U, count_U.to(batch.score_dtype), column_TB
    return target_TB.flatten(), valid_TB.flatten().to(batch.score_dtype), None


def num_merged(noise: Noise, num_positions: int, most: int | None) -> int:
    """Give the columns into which kernels merge equal words, so many as differ at most; 0: they do not."""
    if num_positions == 0 or (most is None and num_positions < MIN_MERGED):
        return 0
    return -(-(noise.max_distinct(num_positions) if most is None else most) // ROUND) * ROUND


def classification_or_ranking(
    block: Block, *, count_U: Tensor, column_TB: Tensor | None, stream_TB: Tensor, beta: float, penalty: float
) -> Tensor:
    """Turn products into gradients of the scores, and give the loss of each row.

    `rows` are the columns of the targets and the rows' streams, and where these see unequal noise −ln m.
    """
    if usable(block.product_PRM):
        from bnce.kernels.chunk import classification_or_ranking as fast

        return fast(block, count_U, column_TB, stream_TB, beta=beta, penalty=penalty)
    target_R1, score_RU = block.rows[0].t(), scores(block)[0]
    for shift_1R in block.rows[2:]:
        score_RU.add_(shift_1R.t())
    noise_sU, nth_R = times_noise(block.rows[1][0], count_U, column_TB, stream_TB)
    target_score_R1 = score_RU.gather(1, target_R1)
    loss_R1, gradient_RU = torch.zeros_like(target_score_R1), None
    if beta < 1:
        share_RU = noise_sU.log().index_select(0, nth_R).add_(score_RU)
        estimate_R1 = shares_(share_RU.unsqueeze(0))[0]
        lead_R1 = estimate_R1 - target_score_R1
        loss_R1 = (1 - beta) * (F.softplus(lead_R1) + penalty * estimate_R1.square())
        push_R1 = (1 - beta) * torch.sigmoid(lead_R1)
        gradient_RU = share_RU.mul_(push_R1 + (1 - beta) * 2 * penalty * estimate_R1)
        gradient_RU.scatter_add_(1, target_R1, -push_R1)
    if beta > 0:
        noise_RU = noise_sU.index_select(0, nth_R)
        of_noise_R1 = F.softplus(score_RU).mul_(noise_RU).sum(1, keepdim=True)
        loss_R1 = loss_R1 + beta * (of_noise_R1 + F.softplus(-target_score_R1))
        sigma_RU = score_RU.sigmoid_().mul_(noise_RU).mul_(beta)
        sigma_RU.scatter_add_(1, target_R1, -beta * torch.sigmoid(-target_score_R1))
        gradient_RU = sigma_RU if gradient_RU is None else sigma_RU.add_(gradient_RU)
    assert gradient_RU is not None
    return finish(block, gradient_RU.unsqueeze(0), loss_R1.t())


def times_noise(
    stream_R: Tensor, count_U: Tensor, column_TB: Tensor | None, stream_TB: Tensor
) -> tuple[Tensor, Tensor]:
    """Count how often each column is noise to a stream (s, U), as a target of the others, and number each row's stream.

    Where shapes must not depend on the data, every row is numbered for itself.
    """
    if column_TB is None:
        noise_RU = count_U * (stream_R.unsqueeze(1) != stream_TB.flatten())
        return noise_RU, torch.arange(stream_R.shape[0], device=stream_R.device)
    stream_s, nth_R = torch.unique(stream_R, return_inverse=True)
    nth_TB = torch.searchsorted(stream_s, stream_TB).clamp(max=len(stream_s) - 1)
    is_own_TB = (stream_s[nth_TB] == stream_TB) & (column_TB >= 0)
    noise_sU = count_U.repeat(len(stream_s), 1)
    place_own = (nth_TB * len(count_U) + column_TB)[is_own_TB]
    noise_sU.view(-1).index_add_(0, place_own, noise_sU.new_full((len(place_own),), -1.0))
    return noise_sU, nth_R
