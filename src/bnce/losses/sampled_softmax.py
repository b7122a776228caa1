"""Sampled softmax: a softmax over a position's own target and words that are drawn for the whole chunk.

Sébastien Jean et al., "On Using Very Large Target Vocabulary for Neural Machine Translation", ACL 2015; as Rafal
Jozefowicz et al. use it, "Exploring the Limits of Language Modeling", 2016. Every score, the target's too, is corrected
by how often its word is expected among the drawn ones:

    s_ij  = h_i·w_j + c_j − ln Q(w_j)
    a_i   = ln Σ_j exp s_ij                                   over the drawn words, or those that are not the target
    J     = Σ_i [ ln(exp a_i + exp s_ii) − s_ii ]

Nothing holds Z(context), so probabilities need the sum over the vocabulary. A hit is a drawn word that equals a
position's own target. Of different words hits have no part in the sum, as in Jozefowicz: the model is right in the
limit of many words. Of words drawn with replacement hits stay: the model is right for any K (Ma and Collins, EMNLP
2018). Without them it never is: the target stands in the sum once, with weight 1 / Q, though it was drawn Q times on
average.

Words are drawn with replacement, or different ones (`record.replacement`): `num_draws` draws with replacement, of which
equal ones count once. Shapes are then fixed, nothing costs time in the size of the vocabulary, and the expected count Q
of a word is exact:

    with replacement   Q(w) = K · p_n(w)
    different words    Q(w) = 1 − (1 − p_n(w))^num_draws

Legend: T time steps, B streams, N = T·B positions, R rows of a block, C columns, D hidden.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce.kernels import usable
from bnce.losses.loss import OutputBatch
from bnce.losses.scored import Block, finish, scored, scores, shares_
from bnce.machine.precision import at_least_float32
from bnce.noise import Noise

LEAST = -1e30  # stands for ln 0 where two of them would be subtracted


def sampled_softmax(batch: OutputBatch, record: Any) -> Tensor:
    """Compute the sampled softmax loss of every position (T, B).

    `batch.loss_state` is the number of draws that give different words; None: words are drawn with replacement.
    """
    words, num_draws = batch.words(), batch.loss_state
    word_C = batch.noise.sample((num_draws or record.num_noise,))
    is_word_C = None
    if num_draws is not None:
        word_C, is_word_C = first_of_each(word_C, batch.noise.max_distinct(num_draws))
    # Targets and drawn words are read together: one gather from a table gives one gradient.
    word_M = torch.cat([words.target_TB.reshape(-1), word_C])
    sizes = words.target_TB.numel(), len(word_C)
    weight_MD, bias_M = batch.output_rows(word_M)
    offset_M = at_least_float32(bias_M) - log_expected(batch.noise, word_M, record.num_noise, num_draws)
    (own_weight_ND, weight_CD), (own_offset_N, offset_C) = weight_MD.split(sizes), offset_M.split(sizes)
    hidden_ND = at_least_float32(batch.hidden_TBD.flatten(0, 1))
    with torch.autocast(hidden_ND.device.type, enabled=False):  # which would make it a narrow product
        own_N = torch.linalg.vecdot(hidden_ND, at_least_float32(own_weight_ND)) + own_offset_N
    return scored(
        batch,
        words,
        functools.partial(ranking, word_C=None if num_draws is None else word_C),
        tables=(weight_CD, offset_C if is_word_C is None else offset_C.where(is_word_C, -torch.inf)),
        own_TB=own_N.view(words.target_TB.shape),
        rows=() if num_draws is None else (words.target_TB,),
    )


def ranking(block: Block, *, word_C: Tensor | None) -> Tensor:
    """Turn products and own scores into gradients, and give the loss of each row.

    `word_C` are the words of the columns where hits have no part; `rows` are then the words of the targets.
    """
    if usable(block.product_PRM):
        from bnce.kernels.sampled_softmax import ranking as fast

        return fast(block, *(() if word_C is None else (word_C,)))
    score_1RC, own_1R = scores(block), block.own_PR
    assert own_1R is not None
    if word_C is not None:
        score_1RC.masked_fill_(block.rows[0].unsqueeze(2) == word_C, -torch.inf)
    total_1R1 = shares_(score_1RC)
    is_nothing_1R1 = total_1R1 == -torch.inf
    lead_1R = total_1R1.squeeze(2).clamp(min=LEAST) - own_1R
    push_1R = torch.sigmoid(lead_1R)
    gradient_1RC = score_1RC.mul_(push_1R.unsqueeze(2)).masked_fill_(is_nothing_1R1, 0.0)
    own_1R.copy_(-push_1R)
    return finish(block, gradient_1RC, F.softplus(lead_1R))


def first_of_each(drawn_K: Tensor, num_columns: int) -> tuple[Tensor, Tensor]:
    """Put the different words in the order in which they came into so many columns, and say which are filled."""
    sorted_K, order_K = torch.sort(drawn_K, stable=True)
    is_new_K = torch.cat([torch.ones_like(sorted_K[:1], dtype=torch.bool), sorted_K[1:] != sorted_K[:-1]])
    is_first_K = torch.empty_like(is_new_K).scatter_(0, order_K, is_new_K)
    # Those that come again, or for which there is no room, go to a column that is cut off.
    place_K = torch.where(is_first_K, is_first_K.cumsum(0) - 1, num_columns).clamp(max=num_columns)
    word_C = drawn_K[:1].expand(num_columns + 1).clone().scatter_(0, place_K, drawn_K)[:num_columns]
    return word_C, torch.arange(num_columns, device=drawn_K.device) < is_first_K.sum()


def log_expected(noise: Noise, words: Tensor, num_noise: int, num_draws: int | None) -> Tensor:
    """Compute ln Q: how often each word is expected among those drawn."""
    log_prob = noise.log_prob(words)
    if num_draws is None:
        return log_prob + math.log(num_noise)
    log_missing = num_draws * torch.log1p(-log_prob.exp())
    return torch.log(-torch.expm1(log_missing))
