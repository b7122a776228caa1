"""What an exactly normalised layer has beside weight and bias: parameters of its own, and a place for every word.

Such a layer gives each word a way of a few choices; the probability of the word is the product of theirs. The sum over
the vocabulary is 1 as it stands, so ln Z is 0 and no constant takes its place. Weight and bias of the layer hold the
rows of the choices, in whatever number the structure says.

Legend: N positions, K words per position, D hidden, V vocabulary, R rows of weight and bias, C parts of a step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from bnce.errors import UserError
from bnce.noise import Noise, Running
from bnce.registry import Loss, load


class Structure(nn.Module, ABC):
    """Finds the rows of a word's choices. Made of the counts of words, which are not part of a state_dict."""

    num_rows: int  # R
    sparse = False  # whether gradients of its own tables may be by row
    parts = "part"  # what room is given to
    most_C: Tensor  # places that a step needed in each part that had no room for them

    def __init__(self, noise: Noise) -> None:
        super().__init__()
        if isinstance(noise, Running):
            raise UserError(
                "This loss orders the words by their frequencies before training, but bnce.noise.Running counts them "
                "while it trains: give the counts of the targets (bnce.noise.from_targets counts them)."
            )
        self.vocab_size = len(noise)
        self.probs_V = self.probs_of(noise)
        self.places_CV: np.ndarray | None = None
        self._given: list[int] | None = None
        self._kept: dict[str, np.ndarray] = {}

    @staticmethod
    def probs_of(noise: Noise) -> np.ndarray | None:
        """Give the share of every word in float64; None where the noise has a length and no values."""
        if noise.log_probs_V.is_meta:
            return None
        probs_V: np.ndarray = noise.log_target_probs().detach().cpu().double().exp().numpy()
        probs_V /= probs_V.sum()
        return probs_V

    def keep(self, name: str, values: np.ndarray | None) -> None:
        """Keep numbers that follow from the counts; None: on a device without values."""
        if values is None:
            self.register_buffer(name, torch.empty(self.vocab_size, device="meta"), persistent=False)
            return
        self._kept[name] = values
        self.register_buffer(name, torch.from_numpy(values), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move as any module does, but keep these numbers: `to_empty` would lose them, a narrow type round them."""
        super()._apply(fn, recurse)
        for name in self._kept:
            self._remake(name)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep these numbers where one is replaced: `from_pretrained` of transformers puts empty memory there."""
        super().__setattr__(name, value)
        if isinstance(value, Tensor) and name in self._kept:
            self._remake(name)

    def _remake(self, name: str) -> None:
        device = self._buffers[name].device  # type: ignore[union-attr]
        if device.type != "meta":
            self._buffers[name] = torch.from_numpy(self._kept[name]).to(device)

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

    def make_room(self, places_CV: np.ndarray | None, num_parts: int) -> None:
        """Say how many places a word takes, as a target, in each part whose size in a step must not depend on the data.

        None: the noise has no values.
        """
        self.places_CV, self._given = places_CV, None
        self._means, self._squares, self._largest = [0.0] * num_parts, [0.0] * num_parts, [0] * num_parts
        if places_CV is not None:
            assert self.probs_V is not None
            self._means = [float(self.probs_V @ places_V) for places_V in places_CV]
            self._squares = [float(self.probs_V @ places_V.astype(np.float64) ** 2) for places_V in places_CV]
            self._largest = [int(places_V.max()) for places_V in places_CV]
        self.keep("most_C", np.zeros(num_parts, dtype=np.int64))

    def set_room(self, room: Sequence[int]) -> None:
        """Take how many places the targets of a chunk take in each part at most."""
        if len(room) != len(self._means) or min(room) < 0:
            raise UserError(f"room is {list(room)}: give one number of 0 or more per part ({len(self._means)}).")
        self._given = [int(size) for size in room]

    def find_room(self, needed_C: Tensor, num_positions: int) -> list[int]:
        """Give the size of each part in this step, of which so many places are needed.

        Where nobody has counted the text, it is as many as targets that follow the frequencies need, with a margin. On
        a CPU it is what this chunk needs.
        """
        most = [num_positions * largest for largest in self._largest]
        if self._given is None and needed_C.device.type == "cpu" and not torch.compiler.is_compiling():
            # One place at least, so that the parameters of every part have a gradient.
            return [min(max(1, needed), size) for needed, size in zip(needed_C.tolist(), most, strict=True)]
        wanted = self._given or [
            math.ceil(1.25 * num_positions * mean + 6 * math.sqrt(num_positions * square) + largest)
            for mean, square, largest in zip(self._means, self._squares, self._largest, strict=True)
        ]
        room = [min(max(1, size), limit) for size, limit in zip(wanted, most, strict=True)]
        without_room = [torch.where(needed_C[part] > size, needed_C[part], 0) for part, size in enumerate(room)]
        self.most_C.copy_(torch.maximum(self.most_C, torch.stack(without_room)))
        return room

    def check(self) -> None:
        """Raise where the targets of a step so far had too little room, so that its loss was NaN."""
        if "most_C" not in self._buffers:
            return
        for part, most in enumerate(self.most_C.tolist()):
            if most:
                self.most_C.zero_()
                given = "targets that follow the noise need"
                if self._given is not None:
                    given = f"room says ({self._given[part]})"
                raise UserError(
                    f"The targets of an earlier step needed {most} places in {self.parts} {part + 1}, more than "
                    f"{given}, so its loss was NaN. Give layer.configure a larger room, one number per {self.parts}, "
                    "or noise with the counts of these targets."
                )


def build_structure(loss: Loss, hidden_size: int, noise: Noise) -> Structure | None:
    """Build what finds the rows of words, where a loss has that, by its settings."""
    if not loss.structure:
        return None
    built: Structure = load(loss.structure)(hidden_size, noise, **msgspec.structs.asdict(loss))
    return built


def by_frequency(probs_V: np.ndarray | None) -> np.ndarray | None:
    """Give every word its place among all, the most frequent first, equal ones in their order."""
    if probs_V is None:
        return None
    place_V = np.empty(len(probs_V), dtype=np.int64)
    place_V[np.argsort(-probs_V, kind="stable")] = np.arange(len(probs_V))
    return place_V
