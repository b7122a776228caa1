"""BlackOut: a weighted softmax over the target and drawn words, of which each must also be told apart from the target.

Shihao Ji et al., "BlackOut: Speeding up Recurrent Neural Network Language Models With Very Large Vocabularies", ICLR
2016. K words are drawn once for the chunk from Q, the unigram to the power α (`noise_power`); a
word weighs 1 / Q. For the drawn words k that are not the position's own target:

    s_ij  = h_i·w_j + c_j − ln Q(w_j)
    p_ij  = exp s_ij / (exp s_ii + Σ_k exp s_ik)
    J     = Σ_i [ −ln p_ii − Σ_k ln(1 − p_ik) ]

With r = p / (1 − p) and R_i = Σ_k r_ik, the gradient of s_ik is p_ik + r_ik − p_ik·R_i, and that of s_ii is
p_ii − 1 − p_ii·R_i. A number added to all scores of a position changes nothing, so nothing holds Z(context), and
probabilities need the sum over the vocabulary.

Legend: T time steps, B streams, N = T·B positions, R positions of a block, C columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnce import kernels
from bnce.losses.drawn_columns import draw_columns, drawn_loss
from bnce.losses.output_batch import OutputBatch
from bnce.machine.precision import at_least_float32

NAME = "blackout"
MOST = 1 - 1e-6  # that a drawn word's p can be, so that ln(1 − p) and its slope stay finite in float32


def blackout(batch: OutputBatch) -> Tensor:
    """Sum the BlackOut loss over the positions that count."""
    return drawn_loss(draw_columns(batch, NAME, corrects=True), blackout_)


def blackout_each(batch: OutputBatch) -> Tensor:
    """Compute the loss of every position (T, B), with every score at once."""
    columns = draw_columns(batch, NAME, corrects=True)
    score_NC = columns.all_scores().masked_fill(columns.word_C == columns.target_N.unsqueeze(1), -torch.inf)
    total_N = torch.cat([columns.own_N.unsqueeze(1), score_NC], 1).logsumexp(1)
    prob_NC = (score_NC - total_N.unsqueeze(1)).exp().clamp(max=MOST)
    loss_N = total_N - columns.own_N - torch.log1p(-prob_NC).sum(1)
    return torch.where(columns.valid_N, loss_N, 0.0).reshape(batch.target_TB.shape)


@kernels.with_twin("drawn_columns")
def blackout_(
    product_RC: Tensor, offset_C: Tensor, own_R: Tensor, word_C: Tensor, target_R: Tensor, valid_R: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the loss of some positions (R,) and the gradient of their own scores; the products become gradients."""
    score_RC = at_least_float32(product_RC) + offset_C
    score_RC.masked_fill_(word_C == target_R.unsqueeze(1), -torch.inf)
    total_R = torch.logaddexp(score_RC.logsumexp(1), own_R)
    prob_RC = score_RC.sub_(total_R.unsqueeze(1)).exp_().clamp_(max=MOST)
    odds_RC = prob_RC / (1 - prob_RC)
    sum_R = odds_RC.sum(1)
    own_prob_R = torch.exp(own_R - total_R)
    loss_R = total_R - own_R - torch.log1p(-prob_RC).sum(1)
    gradient_RC = prob_RC.mul_((1 - sum_R).unsqueeze(1)).add_(odds_RC).mul_(valid_R.unsqueeze(1))
    product_RC.copy_(gradient_RC)
    return torch.where(valid_R, loss_R, 0.0), (own_prob_R - 1 - own_prob_R * sum_R) * valid_R
