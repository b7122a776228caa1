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
    W^t, C^t     weight_TMD, bias_TM   output rows and biases of those words
    N^t          noise.log_prob    p_n of those words, as ln p_n
    B+K−1        log_num_noise     m, the noise words a position sees, as ln m; the columns are M = m + 1
    O^t, Y^t     score_TBM         O/Y = σ(s): both are kept as the log-odds s, never as exp(·)/Z
                 offset_TM         the part shared by all positions: c_j − ln Z − ln(m · p_n(w_j))
    G^t          gradient_TBM      σ(s) − I

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

from bnce.errors import UserError
from bnce.losses.first_order import first_order_only
from bnce.losses.output_batch import OutputBatch
from bnce.machine.precision import at_least_float32, product_dtype, product_in_float32


def batch_nce(batch: OutputBatch) -> Tensor:
    """Sum the B-NCE loss over the positions that count; K > 0 makes it adaptive. `fused_batch_nce` is a faster twin."""
    weight_TMD, offset_TM, stream_TB = _columns(batch)
    loss: Tensor = _BatchNce.apply(batch.hidden_TBD, weight_TMD, offset_TM, stream_TB, product_dtype(weight_TMD))
    return loss


def batch_nce_each(batch: OutputBatch) -> Tensor:
    """Compute the loss of every position (T, B), plainly."""
    weight_TMD, offset_TM, stream_TB = _columns(batch)
    product_TBM = torch.matmul(batch.hidden_TBD.to(weight_TMD.dtype), weight_TMD.transpose(1, 2))
    score_TBM = product_TBM.to(offset_TM.dtype) + offset_TM.unsqueeze(1)
    valid_TB = torch.ones_like(batch.target_TB, dtype=torch.bool) if stream_TB is None else stream_TB >= 0
    return position_losses(score_TBM, valid_TB)


def _columns(batch: OutputBatch) -> tuple[Tensor, Tensor, Tensor | None]:
    """Give the output rows and offsets of the columns, and each position's stream, −1 where it does not count."""
    B, K = batch.target_TB.shape[1], batch.num_noise
    counted = batch.count_steps()
    if counted is None:
        check_noise(batch)
    column_TM = column_words(batch)
    weight_TMD, bias_TM = batch.output_rows(column_TM)
    log_num_noise = math.log(B + K - 1) if counted is None else counted.log_num_noise
    log_noise_TM = batch.noise.log_prob(column_TM)
    if batch.drawn is not None:
        log_noise_TM = log_mixture(log_noise_TM, batch.drawn.log_prob(column_TM), log_num_noise, K)
    offset_TM = column_offset(bias_TM, log_noise_TM=log_noise_TM, log_num_noise=log_num_noise, log_z=batch.log_z)
    return weight_TMD, offset_TM, None if counted is None else counted.stream_TB


def check_noise(batch: OutputBatch) -> None:
    """Refuse a batch in which no position can find noise; where positions are counted, none of them is trained on."""
    B, K = batch.target_TB.shape[1], batch.num_noise
    if B + K < 2:
        raise UserError(
            f"B-NCE needs noise words, but the batch has {B} target and num_noise is {K}: "
            "use a batch of at least 2 or set num_noise above 0."
        )


def column_words(batch: OutputBatch) -> Tensor:
    """Give the words of the columns (T, M): the targets, and as Section 3.2 has it K further words for all of them."""
    if not batch.num_noise:
        return batch.target_TB
    drawn_TK = (batch.drawn or batch.noise).sample((len(batch.target_TB), batch.num_noise))
    return torch.cat([batch.target_TB, drawn_TK], dim=1)


def log_mixture(log_batch_TM: Tensor, log_drawn_TM: Tensor, log_num_noise: Tensor | float, num_drawn: int) -> Tensor:
    """Mix ln u of the batch and ln q of the drawn words by how many of the m noise words come from each."""
    share_drawn = (math.log(num_drawn) - torch.as_tensor(log_num_noise, dtype=log_batch_TM.dtype)).exp().clamp(max=1.0)
    # A position alone with its drawn words sees nothing of the batch: ln 0 is right there.
    return torch.logaddexp(torch.log1p(-share_drawn) + log_batch_TM, share_drawn.log() + log_drawn_TM)


def column_offset(
    bias_TM: Tensor, *, log_noise_TM: Tensor, log_num_noise: Tensor | float, log_z: Tensor | float
) -> Tensor:
    """Compute the part of a score that is the same for every position, in float32 or wider."""
    # differs from the paper: Eqs. (7) and (8) form exp(·)/Z and divide; the log-odds never overflow.
    return at_least_float32(bias_TM) - log_z - log_num_noise - log_noise_TM


class _BatchNce(torch.autograd.Function):
    """The paper's own gradient: G is formed with the loss, and backward is the dense products of Eqs. (9) to (11)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TBD: Tensor,
        weight_TMD: Tensor,
        offset_TM: Tensor,
        stream_TB: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.dtypes = hidden_TBD.dtype, weight_TMD.dtype
        hidden_TBD, weight_TMD = hidden_TBD.to(dtype), weight_TMD.to(dtype)
        with torch.autocast(hidden_TBD.device.type, enabled=False):
            product_TBM = product_in_float32(hidden_TBD, weight_TMD.transpose(1, 2))  # L^t · W^t of Eq. (7)
            loss, gradient_TBM = loss_and_gradient(product_TBM, offset_TM, stream_TB, dtype)
        ctx.save_for_backward(hidden_TBD, weight_TMD, gradient_TBM)
        return loss

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TBD, weight_TMD, gradient_TBM = ctx.saved_tensors
        hidden_dtype, weight_dtype = ctx.dtypes
        weight_error, bias_error, hidden_error = errors(
            gradient_TBM * grads[0].to(gradient_TBM.dtype), hidden_TBD, weight_TMD
        )
        return hidden_error.to(hidden_dtype), weight_error.to(weight_dtype), bias_error, None, None


def loss_and_gradient(
    product_TBM: Tensor, offset_TM: Tensor, stream_TB: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute the loss, summed over positions, and the paper's G in `dtype`, for the scores s = product + offset.

    A position that does not count (its stream is −1) has no loss and is no noise to others: G is zero in its row and in
    its column.
    """
    score_TBM = product_TBM + offset_TM.unsqueeze(1)
    gradient_TBM = torch.sigmoid(score_TBM)  # O/Y off the diagonal
    gradient_TBM.diagonal(dim1=1, dim2=2).sub_(1.0)  # −(B−1)·N/Y = O/Y − 1 on it
    if stream_TB is None:
        return classification_loss(score_TBM), gradient_TBM.to(dtype)
    valid_TB = stream_TB >= 0
    counts_TBM = valid_TB.unsqueeze(2) & counted_columns(valid_TB, score_TBM.shape[2]).unsqueeze(1)
    return position_losses(score_TBM, valid_TB).sum(), (gradient_TBM * counts_TBM).to(dtype)


def errors(gradient_TBM: Tensor, hidden_TBD: Tensor, weight_TMD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the paper's ΔW, ΔC and E(L) from G.

    ΔW and ΔC have one entry per occurrence: "some words may occur more than once in the batch". `rows.merge` adds them.
    """
    error_TMB = gradient_TBM.transpose(1, 2)
    weight_error_TMD = product_in_float32(error_TMB, hidden_TBD)  # Eq. (9), transposed: rows are words here
    ones_T1B = gradient_TBM.new_ones(gradient_TBM.shape[0], 1, gradient_TBM.shape[1])
    bias_error_T1M = product_in_float32(ones_T1B, gradient_TBM)  # Eq. (10), the sum over positions as a product
    hidden_error_TBD = torch.bmm(gradient_TBM, weight_TMD)  # Eq. (11)
    return weight_error_TMD, bias_error_T1M.squeeze(1), hidden_error_TBD


def classification_loss(score_TBM: Tensor) -> Tensor:
    """Sum −ln p(data) of each position's own target and −ln p(noise) of all its other columns."""
    # softplus(−s) = softplus(s) − s makes the target's term a noise term and a correction, so that one sum is left.
    return F.softplus(score_TBM).sum() - score_TBM.diagonal(dim1=1, dim2=2).sum()  # Eq. (5)


def position_losses(score_TBM: Tensor, valid_TB: Tensor) -> Tensor:
    """Compute the same for each position (T, B). One that does not count is no noise to others and has no loss."""
    noise_TBM = torch.where(counted_columns(valid_TB, score_TBM.shape[2]).unsqueeze(1), F.softplus(score_TBM), 0.0)
    loss_TB = noise_TBM.sum(2) - score_TBM.diagonal(dim1=1, dim2=2)
    return torch.where(valid_TB, loss_TB, 0.0)


def counted_columns(valid_TB: Tensor, num_columns: int) -> Tensor:
    """Say which columns (T, M) count: the targets of positions that do, and all words that are drawn."""
    drawn_TK = valid_TB.new_ones(valid_TB.shape[0], num_columns - valid_TB.shape[1])
    return torch.cat([valid_TB, drawn_TK], dim=1)
