"""Rows and their gradients on their way between processes, at shapes that do not depend on the data.

A process names the different words of its step; `bring` gives their rows, `send_back` takes their gradients to where
the rows are kept. With sharded tables these are three exchanges between all processes: row numbers, rows, gradients.
With replicated tables rows are at hand, and the gradients go to everybody.

Legend: R processes, C rows that one process asks another for at most, U rows of a step, F columns of all tables.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from bnce.machine.world import World
from bnce.processes.placement import Placement


class Traffic(Protocol):
    """How rows come and gradients go."""

    def bring(self, word_U: Tensor, num_words: Tensor, tables: list[Tensor]) -> list[Tensor]:
        """Give the rows of the first `num_words` words from every table; later places hold anything."""

    def send_back(self, grad_GUF: Tensor) -> tuple[Tensor, Tensor]:
        """Give the gradients of the rows that this process keeps: row numbers (N,) and gradients (N, F).

        They come from all groups of all processes, in the order of the groups. Numbers may occur more than once, and
        gradients may be zero.
        """

    @property
    def most_rows(self) -> Tensor:
        """The most rows that were asked of one process so far; more than `capacity` cannot be had."""

    capacity: int


def replicated_rows(tables: list[Tensor], words: Tensor) -> list[Tensor]:
    """Read rows of whole tables."""
    return [table.index_select(0, words) for table in tables]


class Replicated:
    """Every process has all rows."""

    def __init__(self, world: World, capacity: int, wire: torch.dtype | None, device: torch.device) -> None:
        self.world, self.capacity, self.wire = world, capacity, wire
        self.most_rows = torch.zeros((), dtype=torch.int64, device=device)

    def bring(self, word_U: Tensor, num_words: Tensor, tables: list[Tensor]) -> list[Tensor]:
        """Read the rows here."""
        torch.maximum(self.most_rows, num_words, out=self.most_rows)
        self._word_U, self._num_words = word_U, num_words
        return replicated_rows(tables, word_U)

    def send_back(self, grad_GUF: Tensor) -> tuple[Tensor, Tensor]:
        """Send all gradients to everybody."""
        G, U, F = grad_GUF.shape
        word_RU = self.world.gather(self._word_U.to(torch.int32), "row numbers")
        # Beyond the step's words stand words of no step, with gradients that nobody may add.
        used_U1 = (torch.arange(U, device=grad_GUF.device) < self._num_words).unsqueeze(1)
        sent = torch.where(used_U1, grad_GUF, 0.0)
        grad_RGUF = self.world.gather(_as_sent(sent, self.wire), "row gradients").to(grad_GUF.dtype)
        word_RGU = word_RU.unsqueeze(1).expand(-1, G, -1)
        return word_RGU.reshape(-1).long(), grad_RGUF.reshape(-1, F)


class Sharded:
    """Every process has some rows."""

    def __init__(
        self, world: World, placement: Placement, capacity: int, wire: torch.dtype | None, device: torch.device
    ) -> None:
        self.world, self.placement, self.capacity, self.wire = world, placement, capacity, wire
        self.most_rows = torch.zeros((), dtype=torch.int64, device=device)
        self._rank_R = torch.arange(world.size, device=device)

    def bring(self, word_U: Tensor, num_words: Tensor, tables: list[Tensor]) -> list[Tensor]:
        """Ask the owners of the rows for them, and answer what they ask for."""
        R, C, U = self.world.size, self.capacity, len(word_U)
        owner_U, row_U = self.placement.find(word_U)
        is_used_U = torch.arange(U, device=word_U.device) < num_words
        is_of_UR = (owner_U.unsqueeze(1) == self._rank_R) & is_used_U.unsqueeze(1)
        nth_UR = is_of_UR.cumsum(0)
        torch.maximum(self.most_rows, nth_UR[-1].max(), out=self.most_rows)
        nth_U = nth_UR.gather(1, owner_U.unsqueeze(1)).squeeze(1) - 1
        fits_U = is_used_U & (nth_U < C)
        # What does not fit, or is not used, goes to a place beyond the others, and nowhere from there.
        self._place_U = torch.where(fits_U, owner_U * C + nth_U, R * C)
        asked = torch.zeros(R * C + 1, dtype=torch.int32, device=word_U.device)
        asked.index_copy_(0, self._place_U, row_U.to(torch.int32))
        self._wanted_N = self.world.exchange(asked[:-1].reshape(R, C), "row numbers").reshape(-1).long()
        answer_NF = torch.cat([_as_matrix(table.index_select(0, self._wanted_N)) for table in tables], 1)
        got_NF = self.world.exchange(_as_sent(answer_NF, self.wire).reshape(R, C, -1), "rows").flatten(0, 1)
        mine_UF = got_NF.index_select(0, self._place_U.clamp(max=R * C - 1)).to(answer_NF.dtype)
        parts = mine_UF.split([table[0].numel() for table in tables], 1)
        return [part.reshape(U, *table.shape[1:]) for part, table in zip(parts, tables, strict=True)]

    def send_back(self, grad_GUF: Tensor) -> tuple[Tensor, Tensor]:
        """Send gradients to the owners of their rows."""
        G, _, F = grad_GUF.shape
        R, C = self.world.size, self.capacity
        sent = torch.zeros(R * C + 1, G, F, dtype=self.wire or grad_GUF.dtype, device=grad_GUF.device)
        sent.index_copy_(0, self._place_U, _as_sent(grad_GUF, self.wire).transpose(0, 1).contiguous())
        sent_RGCF = sent[:-1].reshape(R, C, G, F).transpose(1, 2)
        got_NF = self.world.exchange(sent_RGCF, "row gradients").reshape(-1, F).to(grad_GUF.dtype)
        return self._wanted_N.reshape(R, 1, C).expand(R, G, C).reshape(-1), got_NF


def _as_sent(tensor: Tensor, wire: torch.dtype | None) -> Tensor:
    return tensor if wire is None else tensor.to(wire)


def _as_matrix(rows: Tensor) -> Tensor:
    return rows.unsqueeze(1) if rows.ndim == 1 else rows
