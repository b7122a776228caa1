"""A text in parts that go through a model side by side: as windows with the words before them, or as sentences.

**In context**, windows start every WINDOW words. Each also reads the words before it without scoring them, so every
word has at least that much context; the first window scores all of its words. **By sentence**, nothing stands before a
sentence but `</s>`, as where `bnce score` and `bnce rescore` meet it.

Legend: T time steps, B windows side by side, C context words of an n-gram body, L = C + T, D hidden,
N scored positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bnce.corpus.vocabulary import END
from bnce.language_model import LanguageModel
from bnce.machine.processes import World

WINDOW = 512
STEPS = 64  # time steps run at once, to bound memory


@dataclass(frozen=True)
class Window:
    """Some parts of a text: places beyond the end of a part hold `</s>` and are not scored."""

    input_LB: Tensor
    target_TB: Tensor
    scored_TB: Tensor
    position_TB: Tensor  # of the targets in the text

    def share_of(self, world: World) -> Window:
        """Take out the parts that a process reads; where there is none, it reads one and scores nothing."""
        if world.size == 1:
            return self
        has_some = world.rank < self.target_TB.shape[1]
        share = slice(world.rank, None, world.size) if has_some else slice(0, 1)
        return Window(
            self.input_LB[:, share],
            self.target_TB[:, share],
            self.scored_TB[:, share] & has_some,
            self.position_TB[:, share],
        )


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
        yield _window(ids, position_LB, inside_LB, fresh_TB & inside_LB[1 + num_context :])


def some_windows(
    ids: np.ndarray, num_windows: int, every: int, num_parallel: int, num_context: int, before: int
) -> Iterator[Window]:
    """Cut windows out of a text that is longer, evenly spread, and score every so many words of each.

    They are as long as those of `in_context` and are read as those are. What depends on how far a word is from where
    reading began, as ln Z(context) does, is then the same on average.
    """
    start_W = np.linspace(0, len(ids) - before - WINDOW, num_windows).astype(np.int64)
    place_T1 = np.arange(before + WINDOW)[:, None]
    for first in range(0, num_windows, num_parallel):
        start_B = start_W[first : first + num_parallel]
        number_B = np.arange(first, first + len(start_B))
        position_LB = np.arange(-1 - num_context, before + WINDOW)[:, None] + start_B
        scored_TB = (place_T1 >= before) & ((place_T1 - before + number_B) % every == 0)
        yield _window(ids, position_LB, position_LB >= 0, scored_TB)


def only(parts: Iterable[Window], wanted_P: np.ndarray) -> Iterator[Window]:
    """Score only some positions of a text."""
    wanted = torch.from_numpy(wanted_P)
    for part in parts:
        yield replace(part, scored_TB=part.scored_TB & wanted[part.position_TB.clamp(0, len(wanted) - 1)])


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
        yield _window(ids, place_L1 + start_B, inside_LB, inside_LB[1 + num_context :])


class Positions(NamedTuple):
    """Some positions of a text: the hidden layer at each, the word that comes there, and its place in the text."""

    hidden_ND: Tensor
    target_N: Tensor
    position_N: Tensor  # on the CPU
    num_scored: int  # by all processes together


def read_windows(model: LanguageModel, parts: Iterable[Window], world: World) -> Iterator[Positions]:
    """Let parts of a text go through the network, and give the positions that are scored, some at a time."""
    device = model.embedding.device
    for window in parts:
        own = window.share_of(world)
        state = model.initial_state(own.target_TB.shape[1])
        for begin in range(0, len(window.target_TB), STEPS):
            end = min(begin + STEPS, len(window.target_TB))
            scored_TB = own.scored_TB[begin:end]
            hidden_TBD, state = model(own.input_LB[begin : end + model.num_context].to(device), state)
            scored_there_TB = scored_TB.to(device)
            yield Positions(
                hidden_TBD[scored_there_TB],
                own.target_TB[begin:end].to(device)[scored_there_TB],
                own.position_TB[begin:end][scored_TB],
                int(window.scored_TB[begin:end].sum()),
            )


def _window(ids: np.ndarray, position_LB: np.ndarray, inside_LB: np.ndarray, scored_TB: np.ndarray) -> Window:
    word_LB = np.where(inside_LB, ids[np.clip(position_LB, 0, len(ids) - 1)], END).astype(np.int64)
    num_before = len(word_LB) - len(scored_TB)
    longest = int(np.max(np.nonzero(scored_TB.any(axis=1))[0])) + 1  # the last windows may end early
    words = torch.from_numpy(word_LB)
    return Window(
        input_LB=words[: longest + num_before - 1],
        target_TB=words[num_before:][:longest],
        scored_TB=torch.from_numpy(scored_TB[:longest]),
        position_TB=torch.from_numpy(position_LB[num_before:][:longest]),
    )
