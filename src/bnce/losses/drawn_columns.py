"""Losses whose K words are drawn once for a chunk: every position is scored against the same columns.

The scores of all positions against all drawn words are one matrix product. Positions are visited in blocks, so that
only some scores are in memory, and each visit computes loss and gradient. A position's own target is scored apart.

Words are drawn with replacement, or different ones: `Tries` draws with replacement, of which equal ones count once.
Shapes are then fixed, nothing costs time in the size of the vocabulary, and the expected count Q of a word is exact:

    with replacement   Q(w) = K · p_n(w)
    different words    Q(w) = 1 − (1 − p_n(w))^num_draws

Legend: T time steps, B streams, N = T·B positions, R positions of a block, C columns, D hidden, E = D padded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bnce.errors import UserError
from bnce.kinds.losses import LOSSES
from bnce.losses.blocked import MAX_SCORES
from bnce.losses.first_order import first_order_only
from bnce.losses.output_batch import OutputBatch
from bnce.losses.softmax import pad_rows
from bnce.machine.precision import at_least_float32, product_dtype, product_in_float32, sum_dtype, widen
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
    loss: Tensor = _DrawnLoss.apply(
        columns.hidden_ND,
        columns.weight_CD,
        columns.offset_C,
        columns.own_N,
        columns.word_C,
        columns.target_N,
        columns.valid_N,
        rule,
        product_dtype(columns.hidden_ND),
    )
    return loss


class _DrawnLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_CD: Tensor,
        offset_C: Tensor,
        own_N: Tensor,
        word_C: Tensor,
        target_N: Tensor,
        valid_N: Tensor,
        rule: Rule,
        dtype: torch.dtype,
    ) -> Tensor:
        (N, D), num_words = hidden_ND.shape, len(word_C)
        # Of equal size, so that the last is not a small one.
        num_blocks = max(1, -(-N * num_words // MAX_SCORES.get(hidden_ND.device.type, 2**25)))
        num_rows = max(1, -(-N // num_blocks))
        hidden_NE, weight_CE = widen(hidden_ND, 1.0, dtype), widen(pad_rows(weight_CD, dtype), 0.0, dtype)
        padding = 0, len(weight_CE) - num_words
        offset_C, word_C = F.pad(offset_C, padding, value=-torch.inf), F.pad(word_C, padding, value=-1)
        loss = torch.zeros((), dtype=sum_dtype(dtype), device=hidden_ND.device)
        hidden_grad_NE, own_grad_N = torch.empty_like(hidden_NE), torch.empty_like(own_N)
        weight_grad_CE = torch.zeros(weight_CE.shape, dtype=sum_dtype(dtype), device=hidden_ND.device)
        with torch.autocast(hidden_ND.device.type, enabled=False):
            for begin in range(0, N, num_rows):
                block = slice(begin, min(begin + num_rows, N))
                gradient_RC = torch.mm(hidden_NE[block], weight_CE.t())
                loss_R, own_grad_N[block] = rule(
                    gradient_RC, offset_C, own_N[block], word_C, target_N[block], valid_N[block]
                )
                loss += loss_R.sum()
                torch.mm(gradient_RC, weight_CE, out=hidden_grad_NE[block])
                weight_grad_CE += product_in_float32(gradient_RC.t(), hidden_NE[block])
        ctx.save_for_backward(hidden_grad_NE, weight_grad_CE, own_grad_N)
        ctx.sizes, ctx.dtypes = (num_words, D), (hidden_ND.dtype, weight_CD.dtype)
        return loss

    @staticmethod
    @first_order_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad_NE, weight_grad_CE, own_grad_N = ctx.saved_tensors
        (num_words, D), (hidden_dtype, weight_dtype) = ctx.sizes, ctx.dtypes
        return (
            (hidden_grad_NE[:, :D] * grads[0]).to(hidden_dtype),
            (weight_grad_CE[:num_words, :D] * grads[0]).to(weight_dtype),
            weight_grad_CE[:num_words, D] * grads[0],
            own_grad_N * grads[0],
            None,
            None,
            None,
            None,
            None,
        )
