"""Rows and their gradients on their way between processes, at shapes that do not depend on the data.

A step's words get numbers, which are rows of small tables: C of them for each process that keeps rows. `bring` fills
the small tables, `send_back` takes their gradients to where the rows are kept. With sharded tables these are three
exchanges between all processes: row numbers, rows, gradients. With replicated tables rows are at hand, and the
gradients go to everybody.

Legend: M words of a step with repetitions, R processes that keep rows, C rows of one of them at most, N = R·C numbers,
G groups of streams, F columns of all tables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from bnce import kernels, rows
from bnce.machine.world import World
from bnce.processes.placement import Placement

ALIGNED = 16  # the columns that are sent are filled up to a multiple of it, for whole rows to be copied fast


class Traffic(ABC):
    """Numbers a step's words by who keeps their rows; how rows come and gradients go differs."""

    word_N: Tensor  # of the last step; some word where a number is not used

    def __init__(
        self,
        world: World,
        placement: Placement,
        capacity: int,
        wire: torch.dtype | None,
        device: torch.device,
        *,
        in_order: bool,
    ) -> None:
        """`in_order` numbers words in the order of the vocabulary, however many processes keep their rows."""
        self.world, self.wire = world, wire
        self.placement, self.capacity, self.in_order = placement, capacity, in_order
        self.num_rows = placement.num_processes * capacity  # N
        # That were asked of one process so far; more than `capacity`, which is C, cannot be had.
        self.most_rows = torch.zeros((), dtype=torch.int64, device=device)
        self._owner_R = torch.arange(placement.num_processes, device=device)
        # Where a number's row is among those that are sent, and the other way round; None: at the same place.
        self._sent_N: Tensor | None = None
        self._number_N: Tensor | None = None

    def number(self, words_M: Tensor) -> Tensor:
        """Give each word of a step its number (M,)."""
        placement, R, C = self.placement, self.placement.num_processes, self.capacity
        fast = kernels.choose("working_rows", words_M, deterministic=self.in_order)
        if fast is not None:
            position_V = placement.position_V
            sizes = placement.num_words, placement.rows_each, R, C
            self._row_N, self.word_N, place_M = fast.number(words_M, position_V, *sizes, self.most_rows)
            return place_M  # type: ignore[no-any-return]
        word_U, nth_M, is_used_U = _distinct(words_M, placement.num_words)
        owner_U, row_U = placement.find(word_U)
        is_of_UR = (owner_U.unsqueeze(1) == self._owner_R) & is_used_U.unsqueeze(1)
        nth_UR = is_of_UR.cumsum(0)
        torch.maximum(self.most_rows, nth_UR[-1].max(), out=self.most_rows)
        nth_U = nth_UR.gather(1, owner_U.unsqueeze(1)).squeeze(1) - 1
        # What does not fit, or is not used, goes to a place beyond the others, and nowhere from there.
        place_U = torch.where(is_used_U & (nth_U < C), owner_U * C + nth_U, R * C)
        self._row_N = row_U.new_zeros(R * C + 1).index_copy_(0, place_U, row_U)[:-1].to(torch.int32)
        word_N = word_U.new_full((R * C + 1,), placement.num_words).index_copy_(0, place_U, word_U)[:-1]
        place_M = place_U.clamp(max=R * C - 1).index_select(0, nth_M)
        if self.in_order:
            word_N, self._sent_N = torch.sort(word_N, stable=True)
            self._number_N = torch.argsort(self._sent_N)
            place_M = self._number_N.index_select(0, place_M)
        self.word_N = torch.where(word_N < placement.num_words, word_N, 0)
        return place_M

    @abstractmethod
    def bring(self, tables: Sequence[Tensor], working: Sequence[Tensor]) -> None:
        """Fill small tables with the rows of the numbered words; rows whose number is not used hold anything."""

    @abstractmethod
    def send_back(self, grad_GNF: Tensor) -> tuple[Tensor, Tensor]:
        """Give the gradients of the rows that this process keeps: row numbers (K,) and gradients (K, F).

        They come from all groups of all processes, in the order of the groups. Numbers may occur more than once where
        there are several groups or processes, and gradients may be zero.
        """

    def _by_owner(self, grad_GNF: Tensor) -> Tensor:
        """Put gradients where their rows are among those that are sent."""
        return grad_GNF if self._number_N is None else grad_GNF.index_select(1, self._number_N)


class Replicated(Traffic):
    """Every process has all rows."""

    def bring(self, tables: Sequence[Tensor], working: Sequence[Tensor]) -> None:
        """Read the rows here."""
        for table, rows_N in zip(tables, working, strict=True):
            row_N = self._row_N if self._sent_N is None else self._row_N.index_select(0, self._sent_N)
            _functions(table).copy_rows_(rows_N, table, row_N)

    def send_back(self, grad_GNF: Tensor) -> tuple[Tensor, Tensor]:
        """Send all gradients to everybody."""
        G, _, F = grad_GNF.shape
        grad_GNF = self._by_owner(grad_GNF)
        row_RN = self.world.gather(self._row_N, "row numbers")
        grad_RGNF = self.world.gather(_as_sent(grad_GNF, self.wire), "row gradients").to(grad_GNF.dtype)
        return row_RN.unsqueeze(1).expand(-1, G, -1).reshape(-1).long(), grad_RGNF.reshape(-1, F)


class Sharded(Traffic):
    """Every process has some rows."""

    def bring(self, tables: Sequence[Tensor], working: Sequence[Tensor]) -> None:
        """Ask the owners of the rows for them, and answer what they ask for."""
        R, C, like = self.world.size, self.capacity, tables[0]
        self._wanted_N = self.world.exchange(self._row_N.reshape(R, C), "row numbers").reshape(-1)
        width = num_columns(tables)
        answer_NF = torch.empty(R * C, width, dtype=self.wire or like.dtype, device=like.device)
        for table, part in zip(tables, split_columns(answer_NF, tables), strict=True):
            _functions(table).copy_rows_(part, table, self._wanted_N)
        got_NF = self.world.exchange(answer_NF.reshape(R, C, width), "rows").reshape(R * C, width)
        for rows_N, part in zip(working, split_columns(got_NF, tables), strict=True):
            _functions(rows_N).copy_rows_(rows_N, part, self._sent_N)

    def send_back(self, grad_GNF: Tensor) -> tuple[Tensor, Tensor]:
        """Send gradients to the owners of their rows."""
        (G, _, F), R, C = grad_GNF.shape, self.world.size, self.capacity
        sent_RGCF = _as_sent(self._by_owner(grad_GNF), self.wire).reshape(G, R, C, F).transpose(0, 1)
        got_KF = self.world.exchange(sent_RGCF, "row gradients").reshape(-1, F).to(grad_GNF.dtype)
        return self._wanted_N.reshape(R, 1, C).expand(R, G, C).reshape(-1).long(), got_KF


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


def _as_sent(tensor: Tensor, wire: torch.dtype | None) -> Tensor:
    return tensor if wire is None else tensor.to(wire)


def _distinct(words_M: Tensor, vocab_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Give the different words (U,), which of them each word is (M,), and which of them there are (U,)."""
    fast = kernels.choose("merged_chunk_nce", words_M)
    if fast is None:
        word_U, nth_M = torch.unique(words_M, return_inverse=True)
        return word_U, nth_M, torch.ones_like(word_U, dtype=torch.bool)
    # In the order of their last places, at a fixed shape.
    word_U, nth_1M, count_U, _ = fast.distinct_words(words_M.unsqueeze(0), min(len(words_M), vocab_size), vocab_size)
    return word_U, nth_1M.view(-1).long(), count_U > 0
