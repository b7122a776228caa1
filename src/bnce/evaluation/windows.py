"""A text in parts that go through a model side by side: as windows with the words before them, or as sentences.

**In context**, windows start every WINDOW words. Each also reads the words before it without scoring them, so every
word has at least that much context; the first window scores all of its words. **By sentence**, nothing stands before a
sentence but `</s>`, as where `bnce score` and `bnce rescore` meet it.

Legend: T time steps, B windows side by side, C context words of an n-gram body, L = 1 + C + T,
D hidden, N scored positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bnce.corpus.vocabulary import END
from bnce.language_model import LanguageModel
from bnce.machine.processes import World

WINDOW = 512
STEPS = 64  # time steps run at once, to bound memory


class Window(NamedTuple):
    """Some parts of a text: places beyond the end of a part hold `</s>` and are not scored."""

    word_LB: Tensor  # with the 1 + C words before the first target
    scored_TB: Tensor
    position_TB: Tensor  # of the targets in the text

    def share_of(self, world: World) -> Window:
        """Take out the parts that a process reads; where there is none, it reads one and scores nothing."""
        if world.rank < self.scored_TB.shape[1]:
            return Window(*(rows[:, world.rank :: world.size] for rows in self))
        first = Window(*(rows[:, :1] for rows in self))
        return first._replace(scored_TB=torch.zeros_like(first.scored_TB))


def in_context(ids: np.ndarray, num_parallel: int, num_context: int, before: int) -> Iterator[Window]:
    """Cut the text into windows, `num_parallel` at a time; each reads the `before` words before it, too."""
    num_windows = max(1, -(-(len(ids) - before) // WINDOW))
    for first in range(0, num_windows, num_parallel):
        start_B = np.arange(first, min(first + num_parallel, num_windows)) * WINDOW
        position_LB = np.arange(-1 - num_context, before + WINDOW)[:, None] + start_B
        # An n-gram's context at a window's start lies before it, and is there to be read; before the text stands </s>.
        inside_LB = (position_LB >= 0) & (position_LB < len(ids))
        position_TB = position_LB[1 + num_context :]
        fresh_TB = (np.arange(len(position_TB)) >= before)[:, None] | (start_B == 0)
        yield make_window(ids, position_LB, inside_LB, fresh_TB & inside_LB[1 + num_context :])


def by_sentence(ids: np.ndarray, num_parallel: int, num_context: int) -> Iterator[Window]:
    """Cut the text into its sentences, the longest first: in a group of neighbours little is padding."""
    end_S = np.flatnonzero(ids == END) + 1
    if not len(end_S) or end_S[-1] < len(ids):
        end_S = np.append(end_S, len(ids))
    length_S = np.diff(end_S, prepend=0)
    order_S = np.argsort(-length_S, kind="stable")
    for first in range(0, len(order_S), num_parallel):
        group_B = order_S[first : first + num_parallel]
        length_B, start_B = length_S[group_B], end_S[group_B] - length_S[group_B]
        place_L1 = np.arange(-1 - num_context, length_B[0])[:, None]
        inside_LB = (place_L1 >= 0) & (place_L1 < length_B)
        yield make_window(ids, place_L1 + start_B, inside_LB, inside_LB[1 + num_context :])


def make_window(ids: np.ndarray, position_LB: np.ndarray, inside_LB: np.ndarray, scored_TB: np.ndarray) -> Window:
    """Take the words at some positions of a text; those that are not `inside` it are `</s>`."""
    word_LB = np.where(inside_LB, ids[np.clip(position_LB, 0, len(ids) - 1)], END).astype(np.int64)
    num_before = len(word_LB) - len(scored_TB)
    longest = int(np.flatnonzero(scored_TB.any(axis=1))[-1]) + 1  # the last windows may end early
    rows = word_LB[: num_before + longest], scored_TB[:longest], position_LB[num_before:][:longest]
    return Window(*map(torch.from_numpy, rows))


class Positions(NamedTuple):
    """Some positions of a text: the hidden layer at each, the word that comes there, and its place in the text."""

    hidden_ND: Tensor
    target_N: Tensor
    position_N: Tensor  # on the CPU
    num_scored: int  # by all processes together


def read_windows(model: LanguageModel, parts: Iterable[Window], world: World) -> Iterator[Positions]:
    """Let parts of a text go through the network, and give the positions that are scored, some at a time."""
    device, num_context = model.embedding.device, model.num_context
    for window in parts:
        own = window.share_of(world)
        target_TB = own.word_LB[1 + num_context :]
        state = model.initial_state(target_TB.shape[1])
        for begin in range(0, len(target_TB), STEPS):
            steps = slice(begin, begin + STEPS)
            scored_TB = own.scored_TB[steps]
            input_LB = own.word_LB[begin : begin + len(scored_TB) + num_context]
            hidden_TBD, state = model(input_LB.to(device), state)
            scored_there_TB = scored_TB.to(device)
            yield Positions(
                hidden_TBD[scored_there_TB],
                target_TB[steps].to(device)[scored_there_TB],
                own.position_TB[steps][scored_TB],
                int(window.scored_TB[steps].sum()),
            )
