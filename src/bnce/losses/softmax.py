"""Cross entropy with the full softmax over the vocabulary (Eq. (1)): what the other losses approximate.

With a penalty λ (`record.penalty`) it is the self-normalised softmax of Jacob Devlin et al., "Fast and Robust Neural
Network Joint Models for Statistical Machine Translation", ACL 2014: trained with the whole sum over the vocabulary, and
scored without it.

    s_iv  = h_i·w_v + c_v − ln Z
    a_i   = ln Σ_v exp s_iv
    J     = Σ_i [ −ln p(target_i) + λ·a_i² ]
    ∂J/∂s = p · (1 + 2·λ·a_i) − one-hot

differs from the paper: there ln Z is 0. Here it is the constant of all other losses, and training starts at it.

Legend: N positions, R that are computed, D hidden, V vocabulary.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from bnce.kernels import usable
from bnce.losses.loss import OutputBatch
from bnce.losses.scored import Block, finish, scored, scores, shares_


def softmax(batch: OutputBatch, record: Any) -> Tensor:
    """Compute −ln p(target) of every position (T, B), with the penalty."""
    words, penalty = batch.words(), record.penalty
    rule = functools.partial(cross_entropies, penalty=penalty)
    # Without a penalty the constant changes nothing.
    return scored(batch, words, rule, log_z=batch.log_z if penalty else None, rows=(words.target_TB,))


def cross_entropies(block: Block, *, penalty: float = 0.0) -> Tensor:
    """Turn products into gradients of the logits, p − one-hot without a penalty, and give the loss of each row."""
    if usable(block.product_PRM):
        from bnce.kernels.softmax import cross_entropies as fast

        return fast(block, penalty=penalty)
    target_PR1 = block.rows[0].unsqueeze(2)
    score_PRV = scores(block)
    target_score_PR1 = score_PRV.gather(2, target_PR1)
    excess_PR1 = shares_(score_PRV)
    loss_PR1 = excess_PR1 - target_score_PR1
    if penalty:
        loss_PR1 = loss_PR1 + penalty * excess_PR1.square()
        score_PRV.mul_(1.0 + 2.0 * penalty * excess_PR1)
    score_PRV.scatter_add_(2, target_PR1, torch.full_like(loss_PR1, -1.0))
    return finish(block, score_PRV, loss_PR1.squeeze(2))
