"""Noise that follows the word before: p_n(w | v), counted in the training text and smoothed with the unigram u.

As Witten and Bell have it, with c(v, w) the number of times that w follows v, and d(v) the number of words that do:

    p_n(w | v) = (c(v, w) + d(v) · u(w)) / (Σ_w c(v, w) + d(v))

No word has probability zero. The pairs that occur are kept in one sorted list with their running counts, 16 bytes for
each. A draw is a search in the running counts, or a draw from u; ln p_n is a search in the list. Both have fixed shapes
and run where the model is.

Legend: V vocabulary, N tokens of the text, E different pairs, K noise words.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bnce.errors import UserError
from bnce.noise import Noise, bent_by, unigram


class BigramNoise(Noise):
    """A distribution over word ids for each word before; without one it is the unigram."""

    follows = True
    pair_E: Tensor  # v · V + w, rising
    cumulated_F: Tensor  # the counts of all pairs before one; F = E + 1
    first_W: Tensor  # the place of the first pair of each v; W = V + 1

    def __init__(self, counts: np.ndarray | Tensor, before_N: np.ndarray, target_N: np.ndarray) -> None:
        """`counts` say how often each word is a target, `before_N` and `target_N` which word follows which."""
        words = unigram(counts)
        V = len(words)
        if len(before_N) != len(target_N) or not len(target_N):
            raise UserError(f"There are {len(before_N)} words before {len(target_N)} targets: give one for each.")
        pair_E, count_E = np.unique(np.asarray(before_N, np.int64) * V + target_N, return_counts=True)
        self._pair_E, self._cumulated_F = pair_E, np.concatenate([[0], np.cumsum(count_E)])
        self._first_W = np.searchsorted(pair_E, np.arange(V + 1) * V)
        super().__init__(words.log_probs_V.double().exp(), bent=bent_by("bigram"))

    def reset_parameters(self) -> None:
        """Write the tables anew where they are, after `to_empty`."""
        super().reset_parameters()
        device = self.log_probs_V.device
        for name in ("pair_E", "cumulated_F", "first_W"):
            self.register_buffer(name, torch.from_numpy(getattr(self, f"_{name}")).to(device), persistent=False)

    def sample_after(self, before: Tensor, num_noise: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw K words (…, K) for each word before (…): one of those that followed it, or one of all."""
        shape = (*before.shape, num_noise)
        any_word = self.sample(shape, generator)
        coin, part = torch.rand(2, *shape, dtype=torch.float64, device=before.device, generator=generator)
        begin, count, num_different = (number.unsqueeze(-1) for number in self._context(before))
        # One of the occurrences of the word before, by its number among all pairs of the text.
        number = (begin + (part * count).long()).minimum(begin + count - 1).clamp(min=0)
        place = torch.searchsorted(self.cumulated_F, number, right=True) - 1
        return torch.where(coin * (count + num_different) < count, self.pair_E[place] % len(self), any_word)

    def log_prob_after(self, before: Tensor, words: Tensor) -> Tensor:
        """Look up ln p_n of words (…, M) after each word before (…)."""
        pair = before.unsqueeze(-1) * len(self) + words
        place = torch.searchsorted(self.pair_E, pair).clamp(max=len(self.pair_E) - 1)
        occurrences = torch.where(
            self.pair_E[place] == pair, self.cumulated_F[place + 1] - self.cumulated_F[place], 0
        ).double()
        _, count, num_different = (number.unsqueeze(-1) for number in self._context(before))
        word_share = self.log_prob(words).double().exp()
        prob = (occurrences + num_different * word_share) / (count + num_different)
        return prob.log().to(self.log_probs_V.dtype)

    def _context(self, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Give the number of pairs that stand before those of a word, how often it was followed, and by how many."""
        first, end = self.first_W[before], self.first_W[before + 1]
        begin = self.cumulated_F[first]
        # A word that was never followed by another counts as if by one: then all is the unigram.
        return begin, self.cumulated_F[end] - begin, (end - first).clamp(min=1)


def count_bigrams(counts: np.ndarray, ids_N: np.ndarray, start: int) -> BigramNoise:
    """Count which word follows which in a text; before its first word stands `start`."""
    target_N = np.asarray(ids_N, np.int64)
    return BigramNoise(counts, np.concatenate([[start], target_N[:-1]]), target_N)
