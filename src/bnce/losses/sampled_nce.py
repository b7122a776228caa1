"""Noise Contrastive Estimation with drawn noise: K own words for each position (NCE), or K shared by the batch (S-NCE).

Both classify a position's own target against K words drawn from p_n (Eqs. (3) to (5) of Oualil & Klakow, 2017):

    s    = h·w + c − ln Z − ln(K · p_n(w))
    J    = softplus(−s_target) + Σ_k softplus(s_k)

Legend: T time steps, B streams, K noise words, D hidden.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce.errors import UserError
from bnce.losses.output_batch import OutputBatch
from bnce.machine.precision import at_least_float32, fitted


def nce(batch: OutputBatch) -> Tensor:
    """Sum the NCE loss: every position has noise words of its own, so nothing is a dense product."""
    return nce_each(batch).sum()


def nce_each(batch: OutputBatch) -> Tensor:
    """Compute the NCE loss of every position (T, B)."""
    noise_TBK = batch.noise.sample((*batch.target_TB.shape, _num_noise(batch, "NCE")))
    # Target and noise are read together: one gather from a table gives one gradient.
    word_TBM = torch.cat([batch.target_TB.unsqueeze(2), noise_TBK], dim=2)
    weight_TBMD, bias_TBM = batch.output_rows(word_TBM)
    product_TBM = torch.matmul(weight_TBMD, fitted(batch.hidden_TBD, weight_TBMD).unsqueeze(3)).squeeze(3)
    log_expected_TBM = _log_expected(batch, batch.noise.log_prob(word_TBM))
    score_TBM = at_least_float32(product_TBM) + at_least_float32(bias_TBM) - log_expected_TBM
    return _loss(batch, score_TBM[:, :, 0], score_TBM[:, :, 1:])


def shared_nce(batch: OutputBatch) -> Tensor:
    """Sum the S-NCE loss: the positions of a time step share its noise words."""
    return shared_nce_each(batch).sum()


def shared_nce_each(batch: OutputBatch) -> Tensor:
    """Compute the S-NCE loss of every position (T, B)."""
    T, B = batch.target_TB.shape
    noise_TK = batch.noise.sample((T, _num_noise(batch, "S-NCE")))
    word_TM = torch.cat([batch.target_TB, noise_TK], dim=1)
    weight_TMD, bias_TM = batch.output_rows(word_TM)
    offset_TM = at_least_float32(bias_TM) - _log_expected(batch, batch.noise.log_prob(word_TM))
    target_product_TB = (batch.hidden_TBD.to(weight_TMD.dtype) * weight_TMD[:, :B]).sum(2)
    noise_product_TBK = torch.matmul(fitted(batch.hidden_TBD, weight_TMD), weight_TMD[:, B:].transpose(1, 2))
    return _loss(
        batch,
        at_least_float32(target_product_TB) + offset_TM[:, :B],
        at_least_float32(noise_product_TBK) + offset_TM[:, B:].unsqueeze(1),
    )


def _loss(batch: OutputBatch, target_score_TB: Tensor, noise_score_TBK: Tensor) -> Tensor:
    return batch.where_counted(F.softplus(-target_score_TB) + F.softplus(noise_score_TBK).sum(2))


def _log_expected(batch: OutputBatch, log_noise: Tensor) -> Tensor:
    """Compute ln(Z · K · p_n(w)): a word whose raw score is above it looks more like data than noise."""
    return log_noise + math.log(batch.num_noise) + batch.log_z


def _num_noise(batch: OutputBatch, name: str) -> int:
    if batch.num_noise < 1:
        raise UserError(
            f"{name} needs noise words, but num_noise is {batch.num_noise}: set it to 1 or more (the paper uses 100)."
        )
    return batch.num_noise
