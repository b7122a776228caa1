"""Sampled softmax: a softmax over a position's own target and words that are drawn for the whole chunk.

Sébastien Jean et al., "On Using Very Large Target Vocabulary for Neural Machine Translation", ACL 2015; as Rafal
Jozefowicz et al. use it, "Exploring the Limits of Language Modeling", 2016. Every score, the target's too, is corrected
by how often its word is expected among the drawn ones (`drawn_columns.py` has Q):

    s_ij  = h_i·w_j + c_j − ln Q(w_j)
    a_i   = ln Σ_j exp s_ij                                   over the drawn words, or those that are not the target
    J     = Σ_i [ ln(exp a_i + exp s_ii) − s_ii ]

Nothing holds Z(context), so probabilities need the sum over the vocabulary. A hit is a drawn word that equals a
position's own target. Of different words hits have no part in the sum, as in Jozefowicz: the model is right in the
limit of many words. Of words drawn with replacement hits stay: the model is right for any K (Ma and Collins, EMNLP
2018). Without them it never is: the target stands in the sum once, with weight 1 / Q, though it was drawn Q times on
average.

Legend: T time steps, B streams, N = T·B positions, R positions of a block, C columns.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce import kernels
from bnce.losses.drawn_columns import draw_columns, drawn_loss
from bnce.losses.output_batch import OutputBatch
from bnce.machine.precision import at_least_float32

NAME = "sampled-softmax"
LEAST = -1e30  # stands for ln 0 where two of them would be subtracted


def sampled_softmax(batch: OutputBatch) -> Tensor:
    """Sum the sampled softmax loss over the positions that count."""
    columns = draw_columns(batch, NAME, corrects=True)
    return drawn_loss(columns, functools.partial(sampled_softmax_, remove_hits=batch.tries is not None))


def sampled_softmax_each(batch: OutputBatch) -> Tensor:
    """Compute the loss of every position (T, B), with every score at once."""
    columns = draw_columns(batch, NAME, corrects=True)
    score_NC = columns.all_scores()
    if batch.tries is not None:
        score_NC = score_NC.masked_fill(columns.word_C == columns.target_N.unsqueeze(1), -torch.inf)
    total_N = torch.cat([columns.own_N.unsqueeze(1), score_NC], 1).logsumexp(1)
    loss_N = torch.where(columns.valid_N, total_N - columns.own_N, 0.0)
    return loss_N.reshape(batch.target_TB.shape)


@kernels.with_twin("drawn_columns")
def sampled_softmax_(
    product_RC: Tensor,
    offset_C: Tensor,
    own_R: Tensor,
    word_C: Tensor,
    target_R: Tensor,
    valid_R: Tensor,
    *,
    remove_hits: bool,
) -> tuple[Tensor, Tensor]:
    """Compute the loss of some positions (R,) and the gradient of their own scores; the products become gradients."""
    score_RC = at_least_float32(product_RC) + offset_C
    if remove_hits:
        score_RC.masked_fill_(word_C == target_R.unsqueeze(1), -torch.inf)
    total_R = score_RC.logsumexp(1).clamp(min=LEAST)
    lead_R = total_R - own_R
    push_R = torch.sigmoid(lead_R) * valid_R
    product_RC.copy_(score_RC.sub_(total_R.unsqueeze(1)).exp_().mul_(push_R.unsqueeze(1)))
    return torch.where(valid_R, F.softplus(lead_R), 0.0), -push_R
