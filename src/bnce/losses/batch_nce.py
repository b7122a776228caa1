"""Batch Noise Contrastive Estimation, plain and adaptive: the target words of the batch are each other's noise.

Youssef Oualil and Dietrich Klakow, "A Batch Noise Contrastive Estimation Approach for Training Large Vocabulary
Language Models", Interspeech 2017, Section 3. For the positions i of one time step and the words j of its columns,

    s_ij = h_i·w_j + c_j − ln Z − ln(M · p_n(w_j))                     the log-odds "data, not noise" of Eq. (3)
    J    = Σ_i [ softplus(−s_ii) + Σ_{j≠i} softplus(s_ij) ]            Eq. (5)
    G    = ∂J/∂s = σ(s) − I                                            the paper's gradient matrix

    paper        here              what it is
    ------------------------------------------------------------------------------------------------
    B, K, H      B, K, D           streams (targets of one time step), drawn noise words, hidden size
    L^t          hidden_TBD        last hidden layer; all T time steps at once, each with its own noise
    V^t          column_TM         the words the output layer is restricted to: B targets, then K drawn
    W^t, C^t     weight_TMD, bias_TM   output rows and biases of those words
    N^t          log_noise_TM      p_n of those words, as ln p_n
    B+K−1        num_noise M       noise words a position sees
    O^t, Y^t     score_TBM         O/Y = σ(s): both live on as the log-odds s, never as exp(·)/Z
    G^t          gradient_TBM      σ(s) − I

A word that stands twice among the columns counts twice, also when it equals a row's own target: that is what makes the
columns a sample of the unigram. Masking such hits would teach the odds p/(1−p) in place of p.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce.errors import UserError
from bnce.losses.output_batch import OutputBatch


def batch_nce(batch: OutputBatch) -> Tensor:
    """Sum the B-NCE loss over the positions that count; K > 0 makes it adaptive."""
    T, B = batch.target_TB.shape
    K = batch.num_noise
    if B + K < 2:
        raise UserError(
            f"B-NCE needs noise words, but the batch holds {B} target and num_noise is {K}: "
            "use a batch of at least 2 or set num_noise above 0."
        )
    column_TM = batch.target_TB
    if K:
        # Section 3.2: K further words, shared by the batch.
        column_TM = torch.cat([column_TM, batch.noise.sample((T, K))], dim=1)
    weight_TMD, bias_TM = batch.output_rows(column_TM)
    score_TBM = log_odds(
        batch.hidden_TBD,
        weight_TMD,
        bias_TM,
        log_noise_TM=batch.noise.log_prob(column_TM),
        log_num_noise=batch.log_num_noise(K, from_batch=True),
        log_z=batch.log_z,
    )
    if batch.valid_TB is None:
        return classification_loss(score_TBM)
    return masked_classification_loss(score_TBM, batch.valid_TB)


def log_odds(
    hidden_TBD: Tensor,
    weight_TMD: Tensor,
    bias_TM: Tensor,
    *,
    log_noise_TM: Tensor,
    log_num_noise: Tensor | float,
    log_z: Tensor | float,
) -> Tensor:
    """Score every position against every column (T, B, M): ln p_θ(w_j | c_i) − ln(M · p_n(w_j)), in float32."""
    # differs from the paper: Eqs. (7) and (8) form exp(·)/Z and divide; the log-odds never overflow.
    offset_TM = bias_TM.float() - log_z - log_num_noise - log_noise_TM
    product_TBM = torch.matmul(hidden_TBD, weight_TMD.transpose(1, 2))  # L^t · W^t of Eq. (7)
    return product_TBM.float() + offset_TM.unsqueeze(1)


def classification_loss(score_TBM: Tensor) -> Tensor:
    """Sum −ln p(data) of each position's own target and −ln p(noise) of all its other columns."""
    # softplus(−s) = softplus(s) − s makes the target's term a noise term and a correction, so that one sum is left.
    return F.softplus(score_TBM).sum() - score_TBM.diagonal(dim1=1, dim2=2).sum()  # Eq. (5)


def masked_classification_loss(score_TBM: Tensor, valid_TB: Tensor) -> Tensor:
    """Compute the same where some positions do not count: they are no noise to others and have no loss themselves."""
    B, M = score_TBM.shape[1:]
    drawn_TM = valid_TB.new_ones(valid_TB.shape[0], M - B)
    column_valid_TM = torch.cat([valid_TB, drawn_TM], dim=1)
    noise_TB = torch.where(column_valid_TM.unsqueeze(1), F.softplus(score_TBM), 0.0).sum(2)
    has_noise_T1 = column_valid_TM.sum(1, keepdim=True) > 1
    loss_TB = noise_TB - score_TBM.diagonal(dim1=1, dim2=2)
    return torch.where(valid_TB & has_noise_T1, loss_TB, 0.0).sum()


def explicit_gradient(
    hidden_TBD: Tensor, weight_TMD: Tensor, score_TBM: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the paper's G, ΔW, ΔC and E(L) from the scores, for the sum of the loss over all positions.

    ΔW and ΔC are one an occurrence: "some words may occur more than once in the batch", and `rows.merge` adds them up.
    """
    B = score_TBM.shape[1]
    gradient_TBM = torch.sigmoid(score_TBM)  # O/Y off the diagonal
    gradient_TBM[:, :, :B].diagonal(dim1=1, dim2=2).sub_(1.0)  # −(B−1)·N/Y = O/Y − 1 on it
    weight_error_TMD = torch.matmul(
        gradient_TBM.transpose(1, 2), hidden_TBD
    )  # Eq. (9), transposed: rows are words here
    bias_error_TM = gradient_TBM.sum(1)  # Eq. (10)
    hidden_error_TBD = torch.matmul(gradient_TBM, weight_TMD)  # Eq. (11)
    return gradient_TBM, weight_error_TMD, bias_error_TM, hidden_error_TBD
