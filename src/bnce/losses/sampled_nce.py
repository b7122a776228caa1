"""Noise Contrastive Estimation with drawn noise: K own words for each position (NCE), or K shared by the batch (S-NCE).

Both classify a position's own target against K words drawn from p_n (Eqs. (3) to (5) of Oualil & Klakow, 2017):

    s    = h·w + c − ln Z − ln(K · p_n(w))
    J    = softplus(−s_target) + Σ_k softplus(s_k)

Legend: T time steps, B streams, K noise words, D hidden.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce.errors import UserError
from bnce.losses.output_batch import OutputBatch


def nce(batch: OutputBatch) -> Tensor:
    """Sum the NCE loss: every position has noise words of its own, so nothing is a dense product."""
    T, B = batch.target_TB.shape
    noise_TBK = batch.noise.sample((T, B, _num_noise(batch, "NCE")))
    weight_TBKD, bias_TBK = batch.output_rows(noise_TBK)
    product_TBK = torch.matmul(weight_TBKD, batch.hidden_TBD.unsqueeze(3)).squeeze(3)
    return _loss(batch, product_TBK.float() + bias_TBK.float() - _log_expected(batch, noise_TBK))


def shared_nce(batch: OutputBatch) -> Tensor:
    """Sum the S-NCE loss: the positions of a time step share its noise words."""
    T = batch.hidden_TBD.shape[0]
    noise_TK = batch.noise.sample((T, _num_noise(batch, "S-NCE")))
    weight_TKD, bias_TK = batch.output_rows(noise_TK)
    product_TBK = torch.matmul(batch.hidden_TBD, weight_TKD.transpose(1, 2))
    return _loss(batch, product_TBK.float() + (bias_TK.float() - _log_expected(batch, noise_TK)).unsqueeze(1))


def _loss(batch: OutputBatch, noise_score_TBK: Tensor) -> Tensor:
    weight_TBD, bias_TB = batch.output_rows(batch.target_TB)
    product_TB = (batch.hidden_TBD.to(weight_TBD.dtype) * weight_TBD).sum(2)
    target_score_TB = product_TB.float() + bias_TB.float() - _log_expected(batch, batch.target_TB)
    loss_TB = F.softplus(-target_score_TB) + F.softplus(noise_score_TBK).sum(2)
    return loss_TB.sum() if batch.valid_TB is None else torch.where(batch.valid_TB, loss_TB, 0.0).sum()


def _log_expected(batch: OutputBatch, words: Tensor) -> Tensor:
    """Compute ln(Z · K · p_n(w)): what a word's raw score must exceed to pass for data."""
    return batch.noise.log_prob(words) + batch.log_num_noise(batch.num_noise, from_batch=False) + batch.log_z


def _num_noise(batch: OutputBatch, name: str) -> int:
    if batch.num_noise < 1:
        raise UserError(
            f"{name} needs noise words, but num_noise is {batch.num_noise}: set it to 1 or more (the paper: 100)."
        )
    return batch.num_noise
