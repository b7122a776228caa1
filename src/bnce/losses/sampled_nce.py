"""Noise Contrastive Estimation with drawn noise: K own words for each position (NCE), or K shared by the batch (S-NCE).

Both classify a position's own target against K words drawn from p_n (Eqs. (3) to (5) of Oualil & Klakow, 2017):

    s    = h·w + c − ln Z − ln(K · p_n(w))
    J    = softplus(−s_target) + Σ_k softplus(s_k)

NCE multiplies no matrices, and of S-NCE there are few scores. So neither needs `scored`: PyTorch derives their
gradients, second derivatives, too.

Legend: T time steps, B streams, K noise words, D hidden.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce.losses.loss import OutputBatch, Words
from bnce.machine.precision import at_least_float32, fitted


def nce(batch: OutputBatch, record: Any) -> Tensor:
    """Compute the NCE loss of every position (T, B): each has noise words of its own, so nothing is a dense product."""
    words = batch.words()
    noise_TBK = batch.noise.sample((*words.target_TB.shape, record.num_noise))
    # Target and noise are read together: one gather from a table gives one gradient.
    word_TBM = torch.cat([words.target_TB.unsqueeze(2), noise_TBK], dim=2)
    weight_TBMD, offset_TBM = _read(batch, word_TBM, record.num_noise)
    product_TBM = torch.matmul(weight_TBMD, fitted(batch.hidden_TBD, weight_TBMD).unsqueeze(3)).squeeze(3)
    score_TBM = at_least_float32(product_TBM) + offset_TBM
    return _losses(words, score_TBM[:, :, 0], score_TBM[:, :, 1:])


def shared_nce(batch: OutputBatch, record: Any) -> Tensor:
    """Compute the S-NCE loss of every position (T, B): the positions of a time step share its noise words."""
    words = batch.words()
    T, B = words.target_TB.shape
    word_TM = torch.cat([words.target_TB, batch.noise.sample((T, record.num_noise))], dim=1)
    weight_TMD, offset_TM = _read(batch, word_TM, record.num_noise)
    target_product_TB = (batch.hidden_TBD.to(weight_TMD.dtype) * weight_TMD[:, :B]).sum(2)
    noise_product_TBK = torch.matmul(fitted(batch.hidden_TBD, weight_TMD), weight_TMD[:, B:].transpose(1, 2))
    return _losses(
        words,
        at_least_float32(target_product_TB) + offset_TM[:, :B],
        at_least_float32(noise_product_TBK) + offset_TM[:, B:].unsqueeze(1),
    )


def _read(batch: OutputBatch, words: Tensor, num_noise: int) -> tuple[Tensor, Tensor]:
    """Read the output rows of some words, and what of their scores is the same for every position."""
    weight, bias = batch.output_rows(words)
    # ln(Z · K · p_n(w)): a word whose raw score is above it looks more like data than noise.
    return weight, at_least_float32(bias) - (batch.noise.log_prob(words) + math.log(num_noise) + batch.log_z)


def _losses(words: Words, target_score_TB: Tensor, noise_score_TBK: Tensor) -> Tensor:
    return words.where_counted(F.softplus(-target_score_TB) + F.softplus(noise_score_TBK).sum(2))
