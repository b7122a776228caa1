"""Batch Noise Contrastive Estimation, plain and adaptive: the target words of the batch are each other's noise.

Youssef Oualil and Dietrich Klakow, "A Batch Noise Contrastive Estimation Approach for Training Large Vocabulary
Language Models", Interspeech 2017, Section 3. For the positions i of one time step and the words j of its columns,

    s_ij = h_i·w_j + c_j − ln Z − ln(m · p_n(w_j))                     the log-odds "data, not noise" of Eq. (3)
    J    = Σ_i [ softplus(−s_ii) + Σ_{j≠i} softplus(s_ij) ]            Eq. (5)
    G    = ∂J/∂s = σ(s) − I                                            the paper's gradient matrix

    paper        here              what it is
    ------------------------------------------------------------------------------------------------
    B, K, H      B, K, D           streams (targets of one time step), drawn noise words, hidden size
    L^t          hidden_TBD        last hidden layer; all T time steps at once, each with its own noise
    V^t          column_TM         the words the output layer is restricted to: B targets, then K drawn
    W^t, C^t     weight_VD, bias_V of those words, which `scored` reads
    N^t          noise.log_prob    p_n of those words, as ln p_n
    B+K−1        log_num_noise     m, the noise words a position sees, as ln m; the columns are M = m + 1
    O^t, Y^t     score_TBM         O/Y = σ(s): both are kept as the log-odds s, never as exp(·)/Z
                 shift_TM          the part of a score beside the paper's O: −ln(m · p_n(w_j))
    G^t          gradient_TBM      σ(s) − I

ΔW, ΔC and E(L), Eqs. (9) to (11), are products with G: `scored` forms them for every loss. They have one entry per
occurrence: "some words may occur more than once in the batch". `rows.merge` adds them up.

A word that occurs twice among the columns counts twice, even if it equals a row's own target: only then are the
columns a sample of the unigram. With such hits masked, the model would learn the odds p/(1−p) instead of p.

The K words may come from other noise q than the batch's unigram u. Then p_n is the mixture of both:
m · p_n(w) = (B−1)·u(w) + K·q(w).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce.kernels import usable
from bnce.losses.loss import OutputBatch, Words, count_noise
from bnce.losses.scored import Block, finish, scored, scores
from bnce.noise import Noise


def batch_nce(batch: OutputBatch, record: Any) -> Tensor:
    """Compute the B-NCE loss of every position (T, B); `record.num_noise` above 0 makes it adaptive.

    The drawn words come from `batch.loss_state`, or where that is None from the noise of the batch.
    """
    column_TM, shift_TM, words = columns(batch, record.num_noise)
    target_TB = words.target_TB
    own_TB = torch.arange(target_TB.shape[1], device=target_TB.device).expand(target_TB.shape)
    return scored(
        batch,
        words,
        classification,
        word_PM=column_TM,
        shift_PM=shift_TM,
        log_z=batch.log_z,
        rows=(own_TB,),
        is_exact=True,
    )


def columns(batch: OutputBatch, num_drawn: int) -> tuple[Tensor, Tensor, Words]:
    """Give the words of the columns (T, M), the targets and as Section 3.2 has it K further ones, and their shifts.

    Third, the targets, and which of them count.
    """
    drawn: Noise = batch.noise if batch.loss_state is None else batch.loss_state
    drawn_TK = drawn.sample((batch.target_TB.shape[0], num_drawn)) if num_drawn else None
    is_mixed = num_drawn > 0 and drawn is not batch.noise
    if usable(batch.weight_VD):
        from bnce.kernels.columns import step_columns

        log_drawn_V = drawn.log_probs_V if is_mixed else None
        given = batch.target_TB, batch.valid_TB, drawn_TK, batch.noise.log_probs_V, log_drawn_V
        column_TM, shift_TM, counts_TB = step_columns(*given)
        return column_TM, shift_TM, Words(batch.target_TB, counts_TB)
    words = batch.words()
    valid_TB, log_num_noise = count_noise(batch, words.valid_TB, num_drawn)
    column_TM = (
        words.target_TB if drawn_TK is None else torch.cat([words.target_TB, drawn_TK], dim=1)
    )  # V^t of Eq. (12)
    log_noise_TM = batch.noise.log_prob(column_TM)
    if is_mixed:
        log_noise_TM = log_mixture(log_noise_TM, drawn.log_prob(column_TM), log_num_noise, num_drawn)
    # differs from the paper: Eqs. (7) and (8) form exp(·)/Z and divide; the log-odds never overflow.
    shift_TM = -log_noise_TM - log_num_noise
    if valid_TB is not None:
        # A position that does not count is no noise to others either. Drawn words always are.
        shift_TM = shift_TM.masked_fill(F.pad(~valid_TB, (0, num_drawn)), -torch.inf)
    return column_TM, shift_TM, words.that_count(valid_TB)


def log_mixture(log_batch_TM: Tensor, log_drawn_TM: Tensor, log_num_noise: Tensor | float, num_drawn: int) -> Tensor:
    """Mix ln u of the batch and ln q of the drawn words by how many of the m noise words come from each."""
    share_drawn = (math.log(num_drawn) - torch.as_tensor(log_num_noise, dtype=log_batch_TM.dtype)).exp().clamp(max=1.0)
    # A position alone with its drawn words sees nothing of the batch: ln 0 is right there.
    return torch.logaddexp(torch.log1p(-share_drawn) + log_batch_TM, share_drawn.log() + log_drawn_TM)


def classification(block: Block) -> Tensor:
    """Turn products into the paper's G, and give −ln p(data) of each row's target and −ln p(noise) of its noise.

    `rows` are the columns of the targets.
    """
    if usable(block.product_PRM):
        from bnce.kernels.batch_nce import classification as fast

        return fast(block)
    target_TB1 = block.rows[0].unsqueeze(2)
    score_TBM = scores(block)  # Eqs. (7) and (8), as ln(O / (m · N))
    # −s instead of s for the target: softplus(−s) is its loss, and σ(s) − 1 = −σ(−s) loses no digits near 1.
    score_TBM.scatter_(2, target_TB1, -score_TBM.gather(2, target_TB1))
    loss_TB = F.softplus(score_TBM).sum(2)  # Eq. (5)
    gradient_TBM = score_TBM.sigmoid_()  # O/Y off the diagonal
    gradient_TBM.scatter_(2, target_TB1, -gradient_TBM.gather(2, target_TB1))  # −(B−1)·N/Y = O/Y − 1 on it
    return finish(block, gradient_TBM, loss_TB)
