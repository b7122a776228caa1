"""Negative sampling, as word2vec has it: noise contrastive estimation without the correction by noise.

Tomas Mikolov et al., "Distributed Representations of Words and Phrases and their Compositionality", NIPS 2013, Eq. (4).
A position's own target is told from K words that are drawn once for the whole chunk, by its raw score:

    s_ij  = h_i·w_j + c_j
    J     = Σ_i [ softplus(−s_ii) + Σ_k softplus(s_ik) ]

The best score is ln p(w | context) − ln(K · p_n(w)): how much more often the word comes here than among the noise
(Levy and Goldberg, NIPS 2014), less ln K. It is no log-probability, and a softmax over such scores is not p: words
that are rare in the noise get too much. With ln(K · p_n(w)) added to its bias, a model trained by this loss is one
trained by NCE with ln Z = 0.

differs from word2vec: its program skips drawn words that are the target; the paper's equation, and we, do not.

Legend: T time steps, B streams, N = T·B positions, R positions of a block, C columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce import kernels
from bnce.losses.drawn_columns import draw_columns, drawn_loss
from bnce.losses.output_batch import OutputBatch
from bnce.machine.precision import at_least_float32

NAME = "negative-sampling"


def negative_sampling(batch: OutputBatch) -> Tensor:
    """Sum the loss over the positions that count."""
    return drawn_loss(draw_columns(batch, NAME, corrects=False), negative_sampling_)


def negative_sampling_each(batch: OutputBatch) -> Tensor:
    """Compute the loss of every position (T, B), with every score at once."""
    columns = draw_columns(batch, NAME, corrects=False)
    loss_N = F.softplus(-columns.own_N) + F.softplus(columns.all_scores()).sum(1)
    return torch.where(columns.valid_N, loss_N, 0.0).reshape(batch.target_TB.shape)


@kernels.with_twin("drawn_columns")
def negative_sampling_(
    product_RC: Tensor, offset_C: Tensor, own_R: Tensor, word_C: Tensor, target_R: Tensor, valid_R: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the loss of some positions (R,) and the gradient of their own scores; the products become gradients."""
    score_RC = at_least_float32(product_RC) + offset_C
    loss_R = F.softplus(-own_R) + F.softplus(score_RC).sum(1)
    product_RC.copy_(score_RC.sigmoid_().mul_(valid_R.unsqueeze(1)))
    return torch.where(valid_R, loss_R, 0.0), -torch.sigmoid(-own_R) * valid_R
