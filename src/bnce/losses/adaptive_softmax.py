"""Adaptive softmax (Grave et al., 2017): the frequent words in one softmax, the rare ones in smaller ones behind it.

The sum over the vocabulary is 1 as it stands, so ln Z is 0 and no constant takes its place.

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
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bnce.errors import UserError
from bnce.losses.loss import OutputBatch
from bnce.losses.scored import scored
from bnce.losses.scores import log_normaliser, score_all, score_words
from bnce.losses.softmax import cross_entropies
from bnce.noise import Noise, Running

# The shares of the vocabulary after which the tails begin. At V = 800K these are the cutoffs 60,000 and 160,000 of
# Baevski and Auli (2019), at WikiText-103's V = 267K about fairseq's 20,000 and 60,000.
CUTOFF_SHARES = (3 / 40, 1 / 5)


def adaptive_softmax(batch: OutputBatch, record: Any) -> Tensor:
    """Compute −ln p(target) of every position (T, B); `batch.loss_state` is the `AdaptiveSoftmax` of the record."""
    words, layer = batch.words(), batch.loss_state
    head_TB, tail_TB, place_TB = layer.find(words.target_TB, words.valid_TB)
    loss_TB = scored(batch, words, cross_entropies, rows=(head_TB,))
    capacities = layer.capacities_for(words.target_TB)
    for number, (tail, capacity) in enumerate(zip(layer.all_tails(), capacities, strict=True), start=1):
        is_there_TB = tail_TB == number
        loss_TB = loss_TB + scored(
            batch,
            words.that_count(is_there_TB),
            cross_entropies,
            hidden_TBD=tail.project(batch.hidden_TBD),
            tables=(tail.weight, tail.bias),
            rows=(torch.where(is_there_TB, place_TB - tail.begin, 0),),
            capacity=capacity,
        )
        if capacity is not None:
            loss_TB = loss_TB + layer.excess(number, is_there_TB.sum(), capacity)
    return loss_TB


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


class AdaptiveSoftmax(nn.Module):
    """The tails, each with a capacity of so many targets of a chunk, and the place of every word.

    Weight and bias of the output layer are the rows of the head.
    """

    def __init__(self, hidden_size: int, noise: Noise, *, cutoffs: Sequence[int] = (), div_value: float = 4.0) -> None:
        """`cutoffs` are the places, in the order of frequency, at which the tails begin; none: by V."""
        super().__init__()
        if isinstance(noise, Running):
            raise UserError(
                "This loss orders the words by their frequencies before training, but bnce.noise.Running counts them "
                "while it trains: give the counts of the targets (bnce.noise.from_targets counts them)."
            )
        V = len(noise)
        cutoffs = list(cutoffs) or default_cutoffs(V)
        if sorted(set(cutoffs)) != cutoffs or cutoffs[0] < 1 or cutoffs[-1] >= V:
            raise UserError(
                f"cutoffs are {cutoffs}: give rising numbers from 1 to {V - 1}, below the size of the vocabulary ({V})."
            )
        self.cutoffs, self.num_frequent = cutoffs, cutoffs[0]
        self.num_rows = self.num_frequent + len(cutoffs)
        self.tails, size = nn.ModuleList(), hidden_size
        for number, (begin, end) in enumerate(zip(cutoffs, [*cutoffs[1:], V], strict=True), start=1):
            if size > 1:  # else the power may be larger than any number
                size = max(1, int(hidden_size // div_value**number))
            self.tails.append(Tail(hidden_size, size, begin, end))
        self.capacities: Sequence[int] | None = None
        self.places_CV: np.ndarray | None = None  # whether a word is in a tail; none where the noise has no values
        self.most_C = torch.zeros(len(cutoffs), dtype=torch.int64, device="cpu")
        self._ordered_V = torch.empty(V, device="meta")
        if not noise.log_probs_V.is_meta:
            prob_V = noise.log_target_probs().detach().cpu().double().exp()
            self._sorted_V, order_V = torch.sort(prob_V / prob_V.sum(), descending=True, stable=True)
            self._ordered_V = torch.empty_like(order_V).scatter_(0, order_V, torch.arange(V, device="cpu"))
            tails_C1 = np.arange(1, len(cutoffs) + 1)[:, None]
            self.places_CV = np.searchsorted(cutoffs, self._ordered_V.numpy(), side="right") == tails_C1
            self.shares = [float(self._sorted_V[tail.begin : tail.end].sum()) for tail in self.all_tails()]
        self.place_V = self._ordered_V  # the place of each word in the order of frequency

    def bring(self, device: torch.device) -> None:
        """Have the places of words on the device that the next step computes on.

        They are no buffers: `to_empty` would lose them, and `from_pretrained` of transformers put empty memory there.
        """
        if self.place_V.device != device:
            self.place_V = self._ordered_V.to(device)
            self.most_C = torch.zeros(len(self.cutoffs), dtype=torch.int64, device=device)

    def start_(self, bias_R: Tensor) -> None:
        """Start at the unigram model; projections keep the size of what they project (Glorot and Bengio, 2010)."""
        for tail, share in zip(self.all_tails(), self.shares, strict=True):
            nn.init.xavier_uniform_(tail.projection)
            tail.weight.uniform_(-0.05, 0.05)
            tail.bias.copy_((self._sorted_V[tail.begin : tail.end] / share).log())
        shares_C = self._sorted_V.new_tensor(self.shares)
        bias_R.copy_(torch.cat([self._sorted_V[: self.num_frequent], shares_C]).log())

    def all_tails(self) -> list[Tail]:
        """Give the tails in the order of their words."""
        return [tail for tail in self.tails if isinstance(tail, Tail)]

    def tables(self) -> dict[str, nn.Parameter]:
        """Name the rows of the tails; projections do not grow with the vocabulary."""
        named = dict(self.named_parameters())
        return {name: parameter for name, parameter in named.items() if not name.endswith(".projection")}

    def find(self, target_N: Tensor, valid_N: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Give the row of the head that leads to each target, its tail, counted from 1, and its place by frequency.

        The tail is 0 if the target is in the head or does not count. The last places of the head and the tails are few,
        so they are compared with one after the other.
        """
        place_N = self.place_V[target_N]
        tail_N = torch.zeros_like(place_N)
        for cutoff in self.cutoffs:
            tail_N = tail_N + (place_N >= cutoff)
        tail_N = tail_N if valid_N is None else torch.where(valid_N, tail_N, 0)
        head_N = torch.where(tail_N > 0, self.num_frequent - 1 + tail_N, place_N)
        return head_N.clamp(max=self.num_rows - 1), tail_N, place_N  # at most: of positions that do not count

    def capacities_for(self, target_TB: Tensor) -> Sequence[int | None]:
        """Say how many targets each tail has at most in this step; None on a CPU, which takes as many as there are.

        Where nobody has counted the text, it is what targets that follow the frequencies need, with a margin.
        """
        if self.capacities is not None:
            return self.capacities
        if target_TB.device.type == "cpu" and not torch.compiler.is_compiling():
            return [None] * len(self.cutoffs)
        N = target_TB.numel()
        return [math.ceil(1.25 * N * share + 6 * math.sqrt(N * share) + 1) for share in self.shares]

    def excess(self, number: int, count: Tensor, capacity: int) -> Tensor:
        """Give 0, or NaN where a tail has more targets than its capacity, and note how many."""
        lacking = torch.where(count > capacity, count, 0)
        self.most_C[number - 1].copy_(torch.maximum(self.most_C[number - 1], lacking))
        return torch.where(lacking > 0, torch.nan, 0.0)

    def check(self) -> None:
        """Raise where the targets of a step so far needed more than a tail's capacity, so that its loss was NaN."""
        for number, most in enumerate(self.most_C.tolist()):
            if most:
                self.most_C.zero_()
                given = "targets that follow the noise need"
                if self.capacities is not None:
                    given = f"capacities say ({self.capacities[number]})"
                raise UserError(
                    f"The targets of an earlier step needed {most} places in tail {number + 1}, more than {given}, so "
                    "its loss was NaN. Give larger capacities, one number per tail, or noise with the counts of these "
                    "targets."
                )

    def log_probs(self, hidden_ND: Tensor, weight_RD: Tensor, bias_R: Tensor, words_NK: Tensor) -> Tensor:
        """Compute ln p of K words for each position; only the tails that these words are in are normalised."""
        head_NK, tail_NK, place_NK = self.find(words_NK)
        log_prob_NK = score_words(hidden_ND, weight_RD, bias_R, head_NK)
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
