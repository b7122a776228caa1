"""Losses whose K words are drawn once for a chunk: every position is scored against the same columns.

The scores of all positions against all drawn words are one matrix product, computed a block of positions at a time
(`blocked.py`). A position's own target is scored apart.

Words are drawn with replacement, or different ones: `Tries` draws with replacement, of which equal ones count once.
Shapes are then fixed, nothing costs time in the size of the vocabulary, and the expected count Q of a word is exact:

    with replacement   Q(w) = K · p_n(w)
    different words    Q(w) = 1 − (1 − p_n(w))^num_draws

Legend: T time steps, B streams, N = T·B positions, R positions of a block, C columns, D hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce.errors import UserError
from bnce.kinds.losses import LOSSES
from bnce.losses.blocked import blocked_loss
from bnce.losses.output_batch import OutputBatch
from bnce.losses.softmax import missing_rows
from bnce.machine.precision import at_least_float32, product_dtype
from bnce.noise import Noise, Tries

# What a block of products becomes, in place: the gradient of its scores. It is given the columns' offsets and words,
# and the positions' own scores, targets and whether they count; it gives each position's loss and its own gradient.
Rule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


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


def draw_columns(batch: OutputBatch, name: str, *, corrects: bool) -> Columns:
    """Draw words and read what the loss `name` needs of them; `corrects` takes ln Q from all scores."""
    if batch.num_noise < 1:
        kind = LOSSES.find(name)
        raise UserError(
            f"The loss {name} draws words, but num_noise is {batch.num_noise}: set it to 1 or more "
            f"({kind.usual_num_noise})."
        )
    target_N = batch.target_TB.reshape(-1)
    N = len(target_N)
    word_C, is_word_C = draw_words(batch)
    # Targets and drawn words are read together: one gather from a table gives one gradient.
    words_M = torch.cat([target_N, word_C])
    weight_MD, bias_M = batch.output_rows(words_M)
    offset_M = at_least_float32(bias_M)
    if corrects:
        offset_M = offset_M - log_expected(batch.noise, words_M, batch.num_noise, batch.tries)
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


def drawn_loss(columns: Columns, rule: Rule) -> Tensor:
    """Sum a loss over the positions that count."""
    weight_CD, offset_C, word_C = columns.weight_CD, columns.offset_C, columns.word_C
    if missing := missing_rows(weight_CD, product_dtype(columns.hidden_ND)):
        weight_CD = F.pad(weight_CD, (0, 0, 0, missing))
        offset_C, word_C = F.pad(offset_C, (0, missing), value=-torch.inf), F.pad(word_C, (0, missing), value=-1)

    def rule_of_block(
        product_RC: Tensor, offset_C: Tensor, own_N: Tensor | None, begin: int
    ) -> tuple[Tensor, Tensor | None]:
        assert own_N is not None
        block = slice(begin, begin + len(product_RC))
        loss_R, own_grad_R = rule(
            product_RC, offset_C, own_N[block], word_C, columns.target_N[block], columns.valid_N[block]
        )
        return loss_R.sum(), own_grad_R

    return blocked_loss(columns.hidden_ND, weight_CD, offset_C, rule_of_block, columns.own_N)
