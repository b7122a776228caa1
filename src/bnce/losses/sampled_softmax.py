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

The scores of all positions against all drawn words are one matrix product, computed a block of positions at a time
(`blocked.py`). A position's own target is scored apart. Words are drawn with replacement, or different ones: `Tries`
draws with replacement, of which equal ones count once. Shapes are then fixed, nothing costs time in the size of the
vocabulary, and the expected count Q of a word is exact:

    with replacement   Q(w) = K · p_n(w)
    different words    Q(w) = 1 − (1 − p_n(w))^num_draws

Legend: T time steps, B streams, N = T·B positions, R positions of a block, C columns, D hidden.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce import kernels
from bnce.errors import UserError
from bnce.losses.blocked import blocked_loss
from bnce.losses.output_batch import OutputBatch
from bnce.losses.softmax import missing_rows
from bnce.machine.precision import at_least_float32, product_dtype
from bnce.noise import Noise, Tries

LEAST = -1e30  # stands for ln 0 where two of them would be subtracted


def sampled_softmax(batch: OutputBatch) -> Tensor:
    """Sum the sampled softmax loss over the positions that count."""
    columns = draw_columns(batch)
    weight_CD, offset_C, word_C = columns.weight_CD, columns.offset_C, columns.word_C
    if missing := missing_rows(weight_CD, product_dtype(columns.hidden_ND)):
        weight_CD = F.pad(weight_CD, (0, 0, 0, missing))
        offset_C, word_C = F.pad(offset_C, (0, missing), value=-torch.inf), F.pad(word_C, (0, missing), value=-1)

    def rule_of_block(
        product_RC: Tensor, offset_C: Tensor, own_N: Tensor | None, begin: int
    ) -> tuple[Tensor, Tensor | None]:
        assert own_N is not None
        block = slice(begin, begin + len(product_RC))
        of_block = own_N[block], word_C, columns.target_N[block], columns.valid_N[block]
        loss_R, own_grad_R = sampled_softmax_(product_RC, offset_C, *of_block, remove_hits=batch.tries is not None)
        return loss_R.sum(), own_grad_R

    return blocked_loss(columns.hidden_ND, weight_CD, offset_C, rule_of_block, columns.own_N)


def sampled_softmax_each(batch: OutputBatch) -> Tensor:
    """Compute the loss of every position (T, B), with every score at once."""
    columns = draw_columns(batch)
    score_NC = columns.all_scores()
    if batch.tries is not None:
        score_NC = score_NC.masked_fill(columns.word_C == columns.target_N.unsqueeze(1), -torch.inf)
    total_N = torch.cat([columns.own_N.unsqueeze(1), score_NC], 1).logsumexp(1)
    loss_N = torch.where(columns.valid_N, total_N - columns.own_N, 0.0)
    return loss_N.reshape(batch.target_TB.shape)


@kernels.with_twin("sampled_softmax")
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


@dataclass(frozen=True)
class Columns:
    """The drawn words with their output rows, and each position's own target with its score."""

    hidden_ND: Tensor
    weight_CD: Tensor
    offset_C: Tensor  # −inf where there is no word
    word_C: Tensor
    own_N: Tensor
    target_N: Tensor
    valid_N: Tensor

    def all_scores(self) -> Tensor:
        """Compute every score (N, C) at once."""
        product_NC = torch.matmul(self.hidden_ND.to(self.weight_CD.dtype), self.weight_CD.t())
        return at_least_float32(product_NC) + self.offset_C


def draw_columns(batch: OutputBatch) -> Columns:
    """Draw words and read what the loss needs of them."""
    if batch.num_noise < 1:
        raise UserError(
            f"The loss sampled-softmax draws words, but num_noise is {batch.num_noise}: set it to 1 or more."
        )
    target_N = batch.target_TB.reshape(-1)
    N = len(target_N)
    word_C, is_word_C = draw_words(batch)
    # Targets and drawn words are read together: one gather from a table gives one gradient.
    words_M = torch.cat([target_N, word_C])
    weight_MD, bias_M = batch.output_rows(words_M)
    offset_M = at_least_float32(bias_M) - log_expected(batch.noise, words_M, batch.num_noise, batch.tries)
    offset_C = offset_M[N:]
    if is_word_C is not None:
        offset_C = offset_C.masked_fill(~is_word_C, -torch.inf)
    hidden_ND = batch.hidden_TBD.flatten(0, 1)
    own_N = at_least_float32((hidden_ND.to(weight_MD.dtype) * weight_MD[:N]).sum(1)) + offset_M[:N]
    valid_TB = torch.ones_like(batch.target_TB, dtype=torch.bool) if batch.valid_TB is None else batch.valid_TB
    return Columns(hidden_ND, weight_MD[N:], offset_C, word_C, own_N, target_N, valid_TB.reshape(-1))


def draw_words(batch: OutputBatch) -> tuple[Tensor, Tensor | None]:
    """Draw the words of the columns (C,), and say which of them are words; None: all."""
    if batch.tries is None:
        return batch.noise.sample((batch.num_noise,)), None
    return first_of_each(batch.noise.sample((batch.tries.num_draws,)), batch.tries.max_distinct)


def first_of_each(drawn_K: Tensor, num_columns: int) -> tuple[Tensor, Tensor]:
    """Put the different words in the order in which they came into so many columns, and say which are filled."""
    sorted_K, order_K = torch.sort(drawn_K, stable=True)
    is_new_K = torch.cat([torch.ones_like(sorted_K[:1], dtype=torch.bool), sorted_K[1:] != sorted_K[:-1]])
    is_first_K = torch.empty_like(is_new_K).scatter_(0, order_K, is_new_K)
    # Those that come again, or for which there is no room, go to a column that is cut off.
    place_K = torch.where(is_first_K, is_first_K.cumsum(0) - 1, num_columns).clamp(max=num_columns)
    word_C = drawn_K[:1].expand(num_columns + 1).clone().scatter_(0, place_K, drawn_K)[:num_columns]
    return word_C, torch.arange(num_columns, device=drawn_K.device) < is_first_K.sum()


def log_expected(noise: Noise, words: Tensor, num_noise: int, tries: Tries | None) -> Tensor:
    """Compute ln Q: how often each word is expected among those drawn."""
    log_prob = noise.log_prob(words)
    if tries is None:
        return log_prob + math.log(num_noise)
    log_missing = tries.num_draws * torch.log1p(-log_prob.exp())
    return torch.log(-torch.expm1(log_missing))
