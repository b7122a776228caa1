"""Which process owns which row of a table.

Words are shuffled by a fixed permutation, and each process owns a range of the shuffled ones: frequent words, which
have neighbouring numbers, so do not sit together. The permutation depends on V alone, so the ranges of any number of
processes are pieces of one and the same table.

Legend: V words, R processes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SEED = 20170820


def shuffle(num_words: int) -> tuple[Tensor, Tensor]:
    """Give the word at each place of the shuffled table, and the place of each word."""
    word_V = torch.from_numpy(np.random.default_rng(SEED).permutation(num_words))
    position_V = torch.empty_like(word_V)
    position_V[word_V] = torch.arange(num_words)
    return word_V, position_V


@dataclass(frozen=True)
class Placement:
    """Where the rows of V words are among R processes."""

    num_words: int
    num_processes: int
    position_V: Tensor  # a word's place in the shuffled table
    word_V: Tensor  # the word at a place

    @classmethod
    def of(cls, num_words: int, num_processes: int, device: torch.device) -> Placement:
        """Place words among processes."""
        word_V, position_V = shuffle(num_words)
        return cls(num_words, num_processes, position_V.to(device), word_V.to(device))

    @classmethod
    def unshuffled(cls, num_words: int, device: torch.device) -> Placement:
        """Leave all words to one process, in their own order."""
        word_V = torch.arange(num_words, device=device)
        return cls(num_words, 1, word_V, word_V)

    @property
    def rows_each(self) -> int:
        """How many rows each process has; the last ones may have fewer in use."""
        return -(-self.num_words // self.num_processes)

    def range_of(self, rank: int) -> tuple[int, int]:
        """Give the first place that a process owns, and the one after its last."""
        begin = min(rank * self.rows_each, self.num_words)
        return begin, min(begin + self.rows_each, self.num_words)

    def words_of(self, rank: int) -> Tensor:
        """List the words that a process owns, in the order of its rows."""
        begin, end = self.range_of(rank)
        return self.word_V[begin:end]

    def find(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Give the owner of each word, and its row there."""
        position = self.position_V[words]
        owner = torch.div(position, self.rows_each, rounding_mode="floor")
        return owner, position - owner * self.rows_each
