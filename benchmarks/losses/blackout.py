"""BlackOut: a weighted softmax over the target and drawn words, of which each must also be told apart from the target.

Shihao Ji et al., "BlackOut: Speeding up Recurrent Neural Network Language Models With Very Large Vocabularies", ICLR
2016. K words are drawn once for the chunk from Q, the unigram to the power α (`noise_power`); a
word weighs 1 / Q. For the drawn words k that are not the position's own target:

    s_ij  = h_i·w_j + c_j − ln Q(w_j)
    p_ij  = exp s_ij / (exp s_ii + Σ_k exp s_ik)
    J     = Σ_i [ −ln p_ii − Σ_k ln(1 − p_ik) ]

A number added to all scores of a position changes nothing, so nothing holds Z(context), and probabilities need the sum
over the vocabulary.

Legend: T time steps, B streams, N = T·B positions, K drawn words, M = N + K, D hidden.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from msgspec import Meta

import bnce

MOST = 1 - 1e-6  # that a drawn word's p can be, so that ln(1 − p) stays finite


def blackout(batch: bnce.OutputBatch, record: BlackOut) -> torch.Tensor:
    """Compute the loss of every position (T, B)."""
    words = batch.words()
    hidden_ND, target_N = batch.hidden_TBD.flatten(0, 1), words.target_TB.flatten()
    N = len(target_N)
    drawn_K = batch.noise.sample((record.num_noise,))
    # Targets and drawn words are read together: one gather from a table gives one gradient.
    word_M = torch.cat([target_N, drawn_K])
    weight_MD, bias_M = batch.output_rows(word_M)
    offset_M = bias_M - batch.noise.log_prob(word_M)
    hidden_ND = hidden_ND.to(weight_MD.dtype)
    own_N = (hidden_ND * weight_MD[:N]).sum(1).to(batch.score_dtype) + offset_M[:N]
    score_NK = (hidden_ND @ weight_MD[N:].t()).to(batch.score_dtype) + offset_M[N:]
    score_NK = score_NK.masked_fill(drawn_K == target_N.unsqueeze(1), -torch.inf)
    total_N = torch.cat([own_N.unsqueeze(1), score_NK], 1).logsumexp(1)
    prob_NK = (score_NK - total_N.unsqueeze(1)).exp().clamp(max=MOST)
    return words.where_counted(total_N - own_N - torch.log1p(-prob_NK).sum(1))


class BlackOut(bnce.Loss, tag="blackout", frozen=True):
    """BlackOut: weighted softmax over drawn words, with a penalty on the probability of each drawn word"""

    code = f"{__name__}:blackout"
    normalises = False
    num_noise: Annotated[int, Meta(ge=1)] = 500  # its authors use 400 to 2000
    noise: Literal["unigram", "uniform", "log-uniform"] = "unigram"
    noise_power: float = 0.4


LOSS = BlackOut
