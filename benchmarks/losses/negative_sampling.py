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

Legend: T time steps, B streams, N = T·B positions, K drawn words, M = N + K, D hidden.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from msgspec import Meta

import bnce


def negative_sampling(batch: bnce.OutputBatch, record: NegativeSampling) -> torch.Tensor:
    """Compute the loss of every position (T, B)."""
    words = batch.words()
    hidden_ND, target_N = batch.hidden_TBD.flatten(0, 1), words.target_TB.flatten()
    N = len(target_N)
    # Targets and drawn words are read together: one gather from a table gives one gradient.
    weight_MD, bias_M = batch.output_rows(torch.cat([target_N, batch.noise.sample((record.num_noise,))]))
    hidden_ND = hidden_ND.to(weight_MD.dtype)
    own_N = (hidden_ND * weight_MD[:N]).sum(1).to(batch.score_dtype) + bias_M[:N]
    score_NK = (hidden_ND @ weight_MD[N:].t()).to(batch.score_dtype) + bias_M[N:]
    return words.where_counted(F.softplus(-own_N) + F.softplus(score_NK).sum(1))


class NegativeSampling(bnce.Loss, tag="negative-sampling", frozen=True):
    """negative sampling: as in word2vec; learns no probabilities"""

    code = f"{__name__}:negative_sampling"
    normalises = False
    scores_odds = True
    caveat = (
        "Negative sampling learns no probabilities: its scores are ln p(word | context) − ln(K · p_n(word)). PPLf is "
        "the perplexity of the softmax over these scores, which gives too much to words that are rare in the noise."
    )
    num_noise: Annotated[int, Meta(ge=1)] = 500  # 500 to 2000 for a language model
    noise: Literal["unigram", "uniform", "log-uniform"] = "unigram"
    noise_power: float = 0.75


LOSS = NegativeSampling
