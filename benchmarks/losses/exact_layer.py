"""What an exactly normalised layer has beside weight and bias: parameters of its own, and a place for every word.

Such a layer gives each word a way of a few choices; the probability of the word is the product of theirs. The sum over
the vocabulary is 1 as it stands, so ln Z is 0 and no constant takes its place. Weight and bias of the output layer hold
the rows of the choices, in whatever number this says.

Legend: N positions, K words per position, D hidden, V vocabulary, R rows of weight and bias, C parts of a step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bnce.errors import UserError
from bnce.noise import Noise, Running


class ExactLayer(nn.Module, ABC):
    """Finds the rows of a word's choices, by the counts of words."""

    num_rows: int  # R
    parts = "part"  # what has a capacity
    most_C: Tensor  # places that a step needed in each part whose capacity was less

    def __init__(self, noise: Noise) -> None:
        super().__init__()
        if isinstance(noise, Running):
            raise UserError(
                "This loss orders the words by their frequencies before training, but bnce.noise.Running counts them "
                "while it trains: give the counts of the targets (bnce.noise.from_targets counts them)."
            )
        self.vocab_size = len(noise)
        self.probs_V: np.ndarray | None = None  # none where the noise has a length and no values
        if not noise.log_probs_V.is_meta:
            probs_V = noise.log_target_probs().detach().cpu().double().exp().numpy()
            self.probs_V = probs_V / probs_V.sum()
        self.capacities: Sequence[int] | None = None
        self._kept: dict[str, Tensor] = {}

    def keep(self, name: str, values: np.ndarray | None) -> None:
        """Keep numbers that follow from the counts; None: the noise has no values.

        They are no buffers: `to_empty` would lose them, and `from_pretrained` of transformers put empty memory there.
        """
        kept = torch.empty(self.vocab_size, device="meta") if values is None else torch.from_numpy(values)
        self._kept[name] = kept
        setattr(self, name, kept)

    def bring(self, device: torch.device) -> None:
        """Have these numbers on the device that the next step computes on."""
        for name, kept in self._kept.items():
            if getattr(self, name).device != device:
                setattr(self, name, kept.to(device))

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

    def place(self, places_CV: np.ndarray | None, num_parts: int) -> None:
        """Say how many places a word takes, as a target, in each part whose size in a step must not depend on the data.

        None: the noise has no values.
        """
        self.places_CV = places_CV
        self.keep("most_C", np.zeros(num_parts, dtype=np.int64))
        if places_CV is not None:
            assert self.probs_V is not None
            self._largest: list[int] = places_CV.max(axis=1).tolist()
            self._means: list[float] = (places_CV @ self.probs_V).tolist()
            self._squares: list[float] = (places_CV.astype(np.float64) ** 2 @ self.probs_V).tolist()

    def choose_sizes(self, needed_C: Tensor, num_positions: int) -> list[int]:
        """Give the size of each part in this step, of which so many places are needed.

        It is the part's capacity. Where nobody has counted the text, it is as many places as targets that follow the
        frequencies need, with a margin; on a CPU it is what this chunk needs.
        """
        if self.capacities is not None:
            sizes = list(self.capacities)
        elif needed_C.device.type == "cpu" and not torch.compiler.is_compiling():
            sizes = needed_C.tolist()
        else:
            sizes = [
                math.ceil(1.25 * num_positions * mean + 6 * math.sqrt(num_positions * square) + largest)
                for mean, square, largest in zip(self._means, self._squares, self._largest, strict=True)
            ]
        # One place at least, so that the parameters of every part have a gradient.
        sizes = [min(max(1, size), num_positions * most) for size, most in zip(sizes, self._largest, strict=True)]
        lacking = [torch.where(needed > size, needed, 0) for needed, size in zip(needed_C, sizes, strict=True)]
        self.most_C.copy_(torch.maximum(self.most_C, torch.stack(lacking)))
        return sizes

    def check(self) -> None:
        """Raise where the targets of a step so far needed more than a part's capacity, so that its loss was NaN."""
        for part, most in enumerate(self.most_C.tolist()):
            if most:
                self.most_C.zero_()
                given = "targets that follow the noise need"
                if self.capacities is not None:
                    given = f"capacities say ({self.capacities[part]})"
                raise UserError(
                    f"The targets of an earlier step needed {most} places in {self.parts} {part + 1}, more than "
                    f"{given}, so its loss was NaN. Give larger capacities, one number per {self.parts}, or noise with "
                    "the counts of these targets."
                )


def by_frequency(probs_V: np.ndarray) -> np.ndarray:
    """Give every word its place among all, the most frequent first, equal ones in their order."""
    place_V = np.empty(len(probs_V), dtype=np.int64)
    place_V[np.argsort(-probs_V, kind="stable")] = np.arange(len(probs_V))
    return place_V
