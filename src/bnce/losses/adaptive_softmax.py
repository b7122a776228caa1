"""Adaptive softmax (Grave et al., 2017): the frequent words in one softmax, the rare ones in smaller ones behind it.

The head is a softmax over the S most frequent words and one entry per tail. A tail is a softmax over its own words, of
a hidden layer that is projected to D / div_value^i units. With k(w) the tail of a rare word:

    p(w) = head(w)                                     for frequent words
    p(w) = head(tail k) · softmax_k(W_k·(P_k·h) + b_k)(w)   for rare ones

Only positions whose target is in a tail compute it. PyTorch's module looks for them with `nonzero`, for which a GPU's
host has to wait. Here every tail has the capacity for as many positions as a chunk of the text has at most, which is
counted beforehand; so shapes do not depend on the data and a step can be captured. More positions make the loss NaN:
they are never left out in silence. Unlike PyTorch's module, tails have biases, so that training starts at the unigram
model.

Legend: N positions, D hidden, V vocabulary, S words of the head, C tails, R = S + C rows of the head, v words and
d units of a tail, Q the capacity of a tail.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bnce.errors import UserError
from bnce.losses.exact_layer import ExactLayer, by_frequency
from bnce.losses.loss import OutputBatch
from bnce.losses.scored import Scoring, score, scored
from bnce.losses.scores import log_normaliser, score_all, score_words
from bnce.losses.softmax import cross_entropies
from bnce.noise import Noise

# The shares of the vocabulary after which the tails begin. At V = 800K these are the cutoffs 60,000 and 160,000 of
# Baevski and Auli (2019), at WikiText-103's V = 267K about fairseq's 20,000 and 60,000.
CUTOFF_SHARES = (3 / 40, 1 / 5)


def adaptive_softmax(batch: OutputBatch, record: Any) -> Tensor:
    """Compute −ln p(target) of every position (T, B); `batch.loss_state` is the `AdaptiveSoftmax` of the record."""
    words, hidden_ND = batch.words(), batch.hidden_TBD.flatten(0, 1)
    layer: AdaptiveSoftmax = batch.loss_state
    place_TB, tail_TB = layer.find(words.target_TB, words.valid_TB)
    loss_TB = scored(batch, words, cross_entropies, rows=(layer.head_rows(place_TB, tail_TB),))
    place_N = place_TB.reshape(-1)
    for tail, position_Q, is_there_Q, excess in layer.positions(tail_TB.reshape(-1)):
        scoring = Scoring(
            cross_entropies,
            counts_PR=is_there_Q.to(batch.score_dtype).unsqueeze(0),
            rows=(torch.where(is_there_Q, place_N.index_select(0, position_Q) - tail.begin, 0).unsqueeze(0),),
            place_R=position_Q,
            num_positions=len(place_N),
        )
        small_1Qd = tail.project(hidden_ND.index_select(0, position_Q)).unsqueeze(0)
        loss_TB = loss_TB + score(small_1Qd, tail.weight, tail.bias, None, None, scoring).view(loss_TB.shape) + excess
    return loss_TB


def _tail_size(hidden_size: int, div_value: float, number: int) -> int:
    """Give the units of a tail, at least one; the power of a large number is none that Python could hold."""
    if number * math.log(div_value) > math.log(hidden_size) + 1:
        return 1
    return max(1, int(hidden_size // div_value**number))


class Tail(nn.Module):
    """A softmax over words of about the same frequency, of a smaller hidden layer."""

    def __init__(self, hidden_size: int, size: int, begin: int, end: int) -> None:
        super().__init__()
        self.begin, self.end = begin, end  # places of its words in the order of frequency
        self.projection = nn.Parameter(torch.empty(size, hidden_size))
        self.weight = nn.Parameter(torch.empty(end - begin, size))
        self.bias = nn.Parameter(torch.empty(end - begin))

    def project(self, hidden_ND: Tensor) -> Tensor:
        """Make the smaller hidden layer."""
        return F.linear(hidden_ND.to(self.projection.dtype), self.projection)


class AdaptiveSoftmax(ExactLayer):
    """The tails, each with a capacity of so many targets of a chunk."""

    parts = "tail"
    place_V: Tensor  # by frequency

    def __init__(self, hidden_size: int, noise: Noise, *, cutoffs: Sequence[int] = (), div_value: float = 4.0) -> None:
        """`cutoffs` are the places, in the order of frequency, at which the tails begin; none: by V."""
        super().__init__(noise)
        V = self.vocab_size
        cutoffs = list(cutoffs) or default_cutoffs(V)
        if sorted(set(cutoffs)) != cutoffs or cutoffs[0] < 1 or cutoffs[-1] >= V:
            raise UserError(
                f"cutoffs are {cutoffs}: give rising numbers from 1 to {V - 1}, below the size of the vocabulary ({V})."
            )
        self.cutoffs, self.num_frequent = cutoffs, cutoffs[0]
        self.num_rows = self.num_frequent + len(cutoffs)
        ends = [*cutoffs[1:], V]
        self.tails = nn.ModuleList(
            Tail(hidden_size, _tail_size(hidden_size, div_value, number), begin, end)
            for number, (begin, end) in enumerate(zip(cutoffs, ends, strict=True), start=1)
        )
        place_V = None if self.probs_V is None else by_frequency(self.probs_V)
        self.keep("place_V", place_V)
        tails_C1 = np.arange(1, len(cutoffs) + 1)[:, None]
        places_CV = None if place_V is None else np.searchsorted(cutoffs, place_V, side="right") == tails_C1
        self.place(places_CV, len(cutoffs))

    def start_(self, bias_R: Tensor) -> None:
        """Start at the unigram model; projections keep the size of what they project (Glorot and Bengio, 2010)."""
        assert self.probs_V is not None
        sorted_V = torch.from_numpy(-np.sort(-self.probs_V))
        shares = []
        for tail in self.all_tails():
            share_v = sorted_V[tail.begin : tail.end]
            shares.append(share_v.sum())
            nn.init.xavier_uniform_(tail.projection)
            tail.weight.uniform_(-0.05, 0.05)
            tail.bias.copy_((share_v / shares[-1]).log())
        bias_R.copy_(torch.cat([sorted_V[: self.num_frequent], torch.stack(shares)]).log())

    def all_tails(self) -> list[Tail]:
        """Give the tails in the order of their words."""
        return [tail for tail in self.tails if isinstance(tail, Tail)]

    def tables(self) -> dict[str, nn.Parameter]:
        """Name the rows of the tails; projections do not grow with the vocabulary."""
        named = dict(self.named_parameters())
        return {name: parameter for name, parameter in named.items() if not name.endswith(".projection")}

    def find(self, target_N: Tensor, valid_N: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Give each target's place by frequency, and its tail, counted from 1; 0: it is in the head or does not count.

        The last places of the head and the tails are few, so they are compared with one after the other.
        """
        place_N = self.place_V[target_N]
        tail_N = torch.zeros_like(place_N)
        for cutoff in self.cutoffs:
            tail_N = tail_N + (place_N >= cutoff)
        return place_N, tail_N if valid_N is None else torch.where(valid_N, tail_N, 0)

    def head_rows(self, place_N: Tensor, tail_N: Tensor) -> Tensor:
        """Give the row of the head that leads to a word: its own, or that of its tail."""
        head_N = torch.where(tail_N > 0, self.num_frequent - 1 + tail_N, place_N)
        return head_N.clamp(max=self.num_rows - 1)  # of positions that do not count

    def positions(self, tail_N: Tensor) -> Iterator[tuple[Tail, Tensor, Tensor, Tensor]]:
        """Give for each tail the positions of its targets (Q,), which of them are any, and 0; beyond capacity NaN."""
        tails = self.all_tails()
        number_C = torch.arange(1, len(tails) + 1, device=tail_N.device)
        count_C = (tail_N.unsqueeze(1) == number_C).sum(0)
        N = len(tail_N)
        sizes = self.choose_sizes(count_C, N)
        order_N = torch.sort(tail_N, stable=True).indices
        first_C = N - count_C.flip(0).cumsum(0).flip(0)  # the tails are the last ones in this order
        for number, (tail, size) in enumerate(zip(tails, sizes, strict=True)):
            place_Q = torch.arange(size, device=tail_N.device)
            position_Q = order_N.index_select(0, (first_C[number] + place_Q).clamp(max=max(0, N - 1)))
            excess = torch.where(count_C[number] > size, torch.nan, 0.0)
            yield tail, position_Q, place_Q < count_C[number], excess

    def log_probs(self, hidden_ND: Tensor, weight_RD: Tensor, bias_R: Tensor, words_NK: Tensor) -> Tensor:
        """Compute ln p of K words for each position; only the tails that these words are in are normalised."""
        place_NK, tail_NK = self.find(words_NK)
        log_prob_NK = score_words(hidden_ND, weight_RD, bias_R, self.head_rows(place_NK, tail_NK))
        log_prob_NK = log_prob_NK - log_normaliser(hidden_ND, weight_RD, bias_R).unsqueeze(1)
        for number, tail in enumerate(self.all_tails(), start=1):
            is_there_NK = tail_NK == number
            (position_Q,) = torch.nonzero(is_there_NK.any(1), as_tuple=True)
            is_there_QK = is_there_NK[position_Q]
            small_Qd = tail.project(hidden_ND[position_Q])
            word_QK = torch.where(is_there_QK, place_NK[position_Q] - tail.begin, 0)
            score_QK = score_words(small_Qd, tail.weight, tail.bias, word_QK)
            score_QK = score_QK - log_normaliser(small_Qd, tail.weight, tail.bias).unsqueeze(1)
            log_prob_NK = log_prob_NK.index_add(0, position_Q, torch.where(is_there_QK, score_QK, 0.0))
        return log_prob_NK

    def all_log_probs(self, hidden_ND: Tensor, weight_RD: Tensor, bias_R: Tensor) -> Tensor:
        """Compute ln p of every word for a few positions (N, V)."""
        head_NR = score_all(hidden_ND, weight_RD, bias_R).log_softmax(1)
        parts = [head_NR[:, : self.num_frequent]]
        for number, tail in enumerate(self.all_tails()):
            own_Nv = score_all(tail.project(hidden_ND), tail.weight, tail.bias).log_softmax(1)
            parts.append(own_Nv + head_NR[:, self.num_frequent + number, None])
        return torch.cat(parts, 1).index_select(1, self.place_V)


def default_cutoffs(vocab_size: int) -> list[int]:
    """Choose where the tails begin by the size of the vocabulary."""
    chosen = sorted({max(1, round(share * vocab_size)) for share in CUTOFF_SHARES})
    return chosen[: bisect.bisect_left(chosen, vocab_size)] or [1]
