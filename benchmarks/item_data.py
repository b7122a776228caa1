"""Sequences of items for next-item recommendation, laid end to end so that a batch has no padding between users.

A user's last item is the test, the one before it validation, the rest is trained on. A batch is a few users' items one
after the other, in a fixed number of places, so that a step has fixed shapes and can be a CUDA graph.

Legend: U users, B users of a batch, N places of a batch, S items of all users, V items (0 is padding).
"""

from __future__ import annotations

import lzma
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bnce.noise import IGNORE_INDEX

BLOCK = 64  # places of a batch come in blocks of so many
QUESTION_USERS = 4096  # users ranked at once


@dataclass(frozen=True)
class Batch:
    """What a body reads, and what comes next at each place."""

    item_N: Tensor
    target_N: Tensor  # IGNORE_INDEX where there is no user
    user_N: Tensor  # which of the batch's users a place is of; −1: none
    place_N: Tensor  # of an item in its sequence, counted so that the last one is always at the same place


class Sequences:
    """The items and the next items of every user, on a device."""

    def __init__(self, inputs: list[list[int]], targets: list[list[int]], length: int, device: torch.device) -> None:
        # One user more, who has nothing, fills up the last batch.
        sizes = np.array([len(items) for items in inputs] + [0])
        self.size_U = torch.from_numpy(sizes).to(device)
        self.begin_U = torch.from_numpy(np.cumsum(sizes) - sizes).to(device)
        self.item_S = torch.tensor([item for items in inputs for item in items] or [0], device=device)
        self.target_S = torch.tensor([item for items in targets for item in items] or [0], device=device)
        self.num_users, self.length, self.num_targets = len(inputs), length, int(sizes.sum())
        self._sizes = sizes[:-1]

    def capacity(self, num_users: int) -> int:
        """Give how many places hold so many random users: four standard deviations above the mean."""
        largest = float(np.sort(self._sizes)[-num_users:].sum())
        usual = num_users * float(self._sizes.mean()) + 4 * math.sqrt(num_users) * float(self._sizes.std())
        return BLOCK * math.ceil(min(largest, usual) / BLOCK)

    def batch(self, users_B: Tensor, num_places: int) -> Batch:
        """Lay some users' items end to end; what does not fit is left out."""
        size_B, begin_B = self.size_U.index_select(0, users_B), self.begin_U.index_select(0, users_B)
        end_B = torch.cumsum(size_B, 0)
        slot_N = torch.arange(num_places, device=users_B.device)
        row_N = torch.searchsorted(end_B, slot_N, right=True)
        real_N = row_N < len(users_B)
        row_N = row_N.clamp(max=len(users_B) - 1)
        offset_N = slot_N - (end_B - size_B).index_select(0, row_N)
        source_N = torch.where(real_N, begin_B.index_select(0, row_N) + offset_N, 0)
        place_N = self.length - size_B.index_select(0, row_N) + offset_N
        return Batch(
            torch.where(real_N, self.item_S.index_select(0, source_N), 0),
            torch.where(real_N, self.target_S.index_select(0, source_N), IGNORE_INDEX),
            torch.where(real_N, row_N, -1),
            torch.where(real_N, place_N, 0),
        )


@dataclass(frozen=True)
class Question:
    """Some users' items so far, and the item that is to be ranked high."""

    batch: Batch
    last_B: Tensor  # the places of the users' last items
    true_B: Tensor


@dataclass(frozen=True)
class ItemSet:
    """A set of users, as one model of one loss sees it."""

    name: str
    num_items: int  # V, with padding
    counts_V: Tensor  # how often each item is a target in training
    train: Sequences
    valid: list[Question]
    test: list[Question]


def read_sequences(path: Path) -> list[list[int]]:
    """Read every user's items."""
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="ascii") as file:
        return [[int(item) for item in line.split()[1:]] for line in file]


def make_set(name: str, sequences: list[list[int]], length: int, device: torch.device) -> ItemSet:
    """Divide users' items into training, validation and test."""
    num_items = 1 + max(max(items) for items in sequences)
    windows = [items[:-2][-length - 1 :] for items in sequences]
    train = Sequences([items[:-1] for items in windows], [items[1:] for items in windows], length, device)
    counts_V = torch.bincount(torch.tensor([item for items in windows for item in items[1:]]), minlength=num_items)
    valid = make_questions([items[:-2] for items in sequences], [items[-2] for items in sequences], length, device)
    test = make_questions([items[:-1] for items in sequences], [items[-1] for items in sequences], length, device)
    return ItemSet(name, num_items, counts_V, train, valid, test)


def make_questions(known: list[list[int]], true: list[int], length: int, device: torch.device) -> list[Question]:
    """Ask for the next item of every user, a few thousand users at once."""
    questions = []
    for first in range(0, len(known), QUESTION_USERS):
        inputs = [items[-length:] for items in known[first : first + QUESTION_USERS]]
        sequences = Sequences(inputs, inputs, length, device)
        num_places = BLOCK * math.ceil(sequences.num_targets / BLOCK)
        batch = sequences.batch(torch.arange(len(inputs), device=device), num_places)
        last_B = torch.cumsum(sequences.size_U[:-1], 0) - 1
        questions.append(Question(batch, last_B, torch.tensor(true[first : first + QUESTION_USERS], device=device)))
    return questions
