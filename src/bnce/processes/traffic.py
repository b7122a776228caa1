"""Rows of a step and their gradients, at shapes that do not depend on the data.

A step's words get numbers, which are rows of small tables. `bring` fills the small tables, and `send_back` sends their
gradients to all processes.

Legend: M words of a step with repetitions, N numbers, R processes, G groups of streams, F columns of all tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from bnce import kernels, rows
from bnce.machine.processes import World

ALIGNED = 16  # the columns that are sent are filled up to a multiple of it, for whole rows to be copied fast


class Traffic:
    """Numbers a step's words, reads their rows, and sends the gradients of these to everybody."""

    word_N: Tensor  # of the last step; word 0 where a number is not used

    def __init__(self, world: World, vocab_size: int, num_rows: int, device: torch.device, *, in_order: bool) -> None:
        """`num_rows` is N; `in_order` numbers words in the order of the vocabulary."""
        self.world, self.vocab_size, self.num_rows, self.in_order = world, vocab_size, num_rows, in_order
        # That a step needed so far; there is no room for more than `num_rows`.
        self.most_rows = torch.zeros((), dtype=torch.int64, device=device)

    def number(self, words_M: Tensor) -> Tensor:
        """Give each word of a step its number (M,)."""
        N = self.num_rows
        fast = kernels.choose("working_rows", words_M, deterministic=self.in_order)
        if fast is not None:
            self.word_N, place_M = fast.number(words_M, self.vocab_size, N, self.most_rows)
            return place_M  # type: ignore[no-any-return]
        word_U, nth_M, is_used_U = _distinct(words_M, self.vocab_size)
        nth_U = is_used_U.cumsum(0)
        torch.maximum(self.most_rows, nth_U[-1], out=self.most_rows)
        # What does not fit, or is not used, goes to a place beyond the others, and nowhere from there.
        place_U = torch.where(is_used_U & (nth_U <= N), nth_U - 1, N)
        word_N = word_U.new_full((N + 1,), self.vocab_size).index_copy_(0, place_U, word_U)[:-1]
        place_M = place_U.clamp(max=N - 1).index_select(0, nth_M)
        if self.in_order:
            word_N, order_N = torch.sort(word_N, stable=True)
            place_M = torch.argsort(order_N).index_select(0, place_M)
        self.word_N = torch.where(word_N < self.vocab_size, word_N, 0)
        return place_M

    def bring(self, tables: Sequence[Tensor], working: Sequence[Tensor]) -> None:
        """Fill small tables with the rows of the numbered words; rows whose number is not used hold anything."""
        for table, rows_N in zip(tables, working, strict=True):
            _functions(table).copy_rows_(rows_N, table, self.word_N)

    def send_back(self, grad_GNF: Tensor) -> tuple[Tensor, Tensor]:
        """Give the gradients of all rows: row numbers (R·G·N,) and gradients (R·G·N, F).

        They come from all groups of all processes, in the order of the groups. Numbers may occur more than once where
        there are several groups or processes, and gradients may be zero.
        """
        G, _, F = grad_GNF.shape
        word_RN = self.world.gather(self.word_N, "row numbers")
        grad_RGNF = self.world.gather(grad_GNF, "row gradients")
        return word_RN.unsqueeze(1).expand(-1, G, -1).reshape(-1), grad_RGNF.reshape(-1, F)


def num_columns(tables: Sequence[Tensor]) -> int:
    """Count the columns of all tables, filled up to what is sent (F)."""
    return -(-sum(table[0].numel() for table in tables) // ALIGNED) * ALIGNED


def split_columns(whole_NF: Tensor, tables: Sequence[Tensor]) -> list[Tensor]:
    """Give the columns of each table, in the shape of its rows."""
    begin, parts = 0, []
    for table in tables:
        if table.ndim == 1:
            parts.append(whole_NF[:, begin])
            begin += 1
        else:
            parts.append(whole_NF[:, begin : begin + table.shape[1]])
            begin += table.shape[1]
    return parts


def _functions(tensor: Tensor) -> ModuleType:
    return kernels.choose("rows", tensor) or rows


def _distinct(words_M: Tensor, vocab_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Give the different words (U,), which of them each word is (M,), and which of them there are (U,)."""
    fast = kernels.choose("merged_chunk_nce", words_M)
    if fast is None:
        word_U, nth_M = torch.unique(words_M, return_inverse=True)
        return word_U, nth_M, torch.ones_like(word_U, dtype=torch.bool)
    # In the order of their last places, at a fixed shape.
    word_U, nth_1M, count_U, _ = fast.distinct_words(words_M.unsqueeze(0), min(len(words_M), vocab_size), vocab_size)
    return word_U, nth_1M.view(-1).long(), count_U > 0
