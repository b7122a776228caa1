"""What an exactly normalised layer has beside weight and bias: parameters of its own, and a place for every word.

Such a layer gives each word a way of a few choices; the probability of the word is the product of theirs. The sum over
the vocabulary is 1 as it stands, so ln Z is 0 and no constant takes its place. Weight and bias of the layer hold the
rows of the choices, in whatever number the structure says.

Legend: N positions, K words per position, D hidden, V vocabulary, R rows of weight and bias.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from bnce.errors import UserError
from bnce.noise import Noise, Running


class Structure(nn.Module, ABC):
    """Finds the rows of a word's choices. Made of the counts of words, which are not part of a state_dict."""

    num_rows: int  # R

    def __init__(self, noise: Noise) -> None:
        super().__init__()
        if isinstance(noise, Running):
            raise UserError(
                "This loss orders the words by their frequencies before training, but bnce.noise.Running counts them "
                "while it trains: give the counts of the targets (bnce.noise.from_targets counts them)."
            )
        self.vocab_size = len(noise)
        self._kept: dict[str, np.ndarray] = {}

    @staticmethod
    def probs_of(noise: Noise) -> np.ndarray | None:
        """Give the share of every word in float64; None where the noise has a length and no values."""
        if noise.log_probs_V.is_meta:
            return None
        probs_V: np.ndarray = noise.log_target_probs().detach().cpu().double().exp().numpy()
        probs_V /= probs_V.sum()
        return probs_V

    def keep(self, name: str, values: np.ndarray | None, size: int) -> None:
        """Keep numbers that follow from the counts; None: on a device without values."""
        if values is None:
            self.register_buffer(name, torch.empty(size, device="meta"), persistent=False)
            return
        self._kept[name] = values
        self.register_buffer(name, torch.from_numpy(values), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move as any module does, but keep these numbers: `to_empty` would lose them, a narrow type round them."""
        super()._apply(fn, recurse)
        for name, values in self._kept.items():
            device = self._buffers[name].device  # type: ignore[union-attr]
            if device.type != "meta":
                self._buffers[name] = torch.from_numpy(values).to(device)
        return self

    @abstractmethod
    def start_(self, bias_R: Tensor) -> None:
        """Start at the unigram model: write the bias that gives every word its share, and own parameters."""

    def tables(self) -> dict[str, nn.Parameter]:
        """Name the parameters of its own that have a row per word."""
        return {}

    @abstractmethod
    def log_probs(self, hidden_ND: Tensor, weight_RD: Tensor, bias_R: Tensor, words_NK: Tensor) -> Tensor:
        """Compute ln p of K words for each position, in float32."""

    @abstractmethod
    def all_log_probs(self, hidden_ND: Tensor, weight_RD: Tensor, bias_R: Tensor) -> Tensor:
        """Compute ln p of every word for a few positions (N, V), in float32."""

    @property
    @abstractmethod
    def products_per_word(self) -> float:
        """The mean number of multiply-adds that the score of a target needs, by the words' frequencies."""

    def cluster_of_words(self) -> np.ndarray | None:
        """Number the clusters that want to know how many targets of a chunk they have at most; 0: none of them."""
        return None

    def set_capacity(self, capacity: Sequence[int]) -> None:
        """Take how many targets of a chunk each cluster has at most."""
        raise UserError("max_tail_targets is for the loss adaptive-softmax: leave it out.")

    def check(self) -> None:
        """Raise where a step so far had targets for which the loss is NaN."""


def by_frequency(probs_V: np.ndarray | None) -> np.ndarray | None:
    """Give every word its place among all, the most frequent first, equal ones in their order."""
    if probs_V is None:
        return None
    place_V = np.empty(len(probs_V), dtype=np.int64)
    place_V[np.argsort(-probs_V, kind="stable")] = np.arange(len(probs_V))
    return place_V
