"""Self-normalised softmax: the softmax over all words, with a penalty that holds ln Z(context) at the constant.

Jacob Devlin et al., "Fast and Robust Neural Network Joint Models for Statistical Machine Translation", ACL 2014. The
model is trained with the whole sum over the vocabulary, and scored without it:

    a_i   = ln Σ_v exp(h_i·w_v + c_v) − ln Z
    J     = Σ_i [ −ln p(target_i) + λ·a_i² ]
    ∂J/∂s = p · (1 + 2·λ·a_i) − one-hot

λ is `penalty`. Of all losses here whose scores the constant normalises, this one is exact, and as slow as the softmax.
differs from the paper: there ln Z is 0. Here it is the constant of all other losses, and training starts at it.

Legend: T time steps, B streams.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from bnce.losses.output_batch import OutputBatch
from bnce.losses.softmax import penalised_cross_entropy
from bnce.machine.precision import at_least_float32


def self_normalised_softmax(batch: OutputBatch) -> Tensor:
    """Sum the loss over the positions that count, with a few positions' logits in memory at a time."""
    hidden_ND, target_N, valid_N = batch.flat()
    layer = batch.weight_VD, batch.bias_V
    return penalised_cross_entropy(hidden_ND, *layer, target_N, valid_N, batch.log_z, batch.penalty)


def self_normalised_softmax_each(batch: OutputBatch) -> Tensor:
    """Compute the loss of every position (T, B), with all logits at once."""
    hidden_TBD = batch.hidden_TBD.to(batch.weight_VD.dtype)
    logit_TBV = at_least_float32(F.linear(hidden_TBD, batch.weight_VD, batch.bias_V))
    log_total_TB = logit_TBV.logsumexp(2)
    target_logit_TB = logit_TBV.gather(2, batch.target_TB.unsqueeze(2)).squeeze(2)
    loss_TB = log_total_TB - target_logit_TB + batch.penalty * (log_total_TB - batch.log_z).square()
    return batch.where_counted(loss_TB)
