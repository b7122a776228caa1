"""Positions of texts with the exact ln Z(context) at each: what a constant or a head is fitted to, and judged by.

Legend: N positions, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bnce.corpus.vocabulary import END
from bnce.errors import UserError
from bnce.evaluation import windows
from bnce.evaluation.evaluate import MIN_SENTENCES, num_read_before, num_side_by_side
from bnce.language_model import LanguageModel
from bnce.machine.precision import float32_products
from bnce.machine.processes import World

Floats = NDArray[np.float64]

MIN_POSITIONS = 100
# Of a window every so many words are measured: neighbours have much the same ln Z, and the rest of a window is read
# only so that the words have as much before them as where a text is evaluated. ln Z grows with that.
EVERY = 16
PER_WINDOW = windows.WINDOW // EVERY
MIN_BLOCKS = 16
HELD_OUT = 4  # one block of so many is not fitted to


@dataclass(frozen=True)
class Sample:
    """N positions in blocks of neighbours: one position says much about the next one, and little of another block."""

    hidden_ND: Floats | None  # None where nobody wants it: it is all of the memory
    score_N: Floats  # of the word that comes there
    log_z_N: Floats  # ln Z(context)
    block_N: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.log_z_N)

    def where(self, chosen_N: NDArray[np.bool_]) -> Sample:
        """Take some of the positions."""
        hidden_ND = None if self.hidden_ND is None else self.hidden_ND[chosen_N]
        return Sample(hidden_ND, self.score_N[chosen_N], self.log_z_N[chosen_N], self.block_N[chosen_N])

    def halves(self) -> tuple[Sample, Sample]:
        """Give the part to fit to, and the part that is held out: every fourth block."""
        held_out_N = self.block_N % HELD_OUT == HELD_OUT - 1
        return self.where(~held_out_N), self.where(held_out_N)


@torch.no_grad()
def draw_sample(
    model: LanguageModel,
    texts: Sequence[np.ndarray],
    max_positions: int,
    *,
    with_hidden: bool,
    by_sentence: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Sample:
    """Compute the exact ln Z(context) at all positions of texts, or at `max_positions` that are spread over them.

    The texts, as ids, share these by their lengths. With `by_sentence`, every sentence starts afresh. `progress` is
    told of positions done and positions in all.
    """
    lengths = [len(ids) for ids in texts]
    num_wanted = min(max_positions, sum(lengths))
    if num_wanted < MIN_POSITIONS:
        raise UserError(
            f"There are {num_wanted} words to calibrate on, and {MIN_POSITIONS} are needed: give more text."
        )
    num_done = 0

    def tell(number: int) -> None:
        nonlocal num_done
        num_done = min(num_done + number, num_wanted)
        if progress is not None:
            progress(num_done, num_wanted)

    with float32_products(tf32=False):
        shares = _share_out(num_wanted, lengths)
        pairs = zip(texts, shares, strict=True)
        parts = [_draw(model.eval(), *pair, with_hidden, by_sentence, tell) for pair in pairs]
    score_N, log_z_N = (np.concatenate([part[place] for part in parts]) for place in (1, 2))
    if not np.isfinite(log_z_N).all():
        raise UserError(
            "ln Z(context) of this model is not finite at some positions: its training failed; train it again."
        )
    block_size = min(PER_WINDOW, len(log_z_N) // MIN_BLOCKS)
    hidden_ND = np.concatenate([part[0] for part in parts if part[0] is not None]) if with_hidden else None
    return Sample(hidden_ND, score_N, log_z_N, np.arange(len(log_z_N)) // block_size)


def _share_out(num_wanted: int, lengths: Sequence[int]) -> list[int]:
    """Give every text its share of the positions, by its length; the shares add up."""
    ends = np.cumsum(lengths) * num_wanted // sum(lengths)
    return [int(share) for share in np.diff(ends, prepend=0)]


def _draw(
    model: LanguageModel,
    ids: np.ndarray,
    num_wanted: int,
    with_hidden: bool,
    by_sentence: bool,
    tell: Callable[[int], None],
) -> tuple[Floats | None, Floats, Floats]:
    """Read a text or some of it: hidden layers, scores of what comes and ln Z, in the order of the text."""
    if not num_wanted:
        hidden_ND = np.zeros((0, model.output.hidden_size)) if with_hidden else None
        return hidden_ND, np.zeros(0), np.zeros(0)
    hidden, scores, log_zs, positions = [], [], [], []
    num_windows, before = -(-num_wanted // PER_WINDOW), num_read_before(model)
    how = num_side_by_side(model), model.num_context
    if by_sentence:
        parts = windows.by_sentence(_some_sentences(ids, num_wanted), max(MIN_SENTENCES, how[0]), model.num_context)
    elif len(ids) >= before + num_windows * windows.WINDOW:
        parts = _some_windows(ids, num_windows, EVERY, *how, before)
    else:
        wanted_P = np.zeros(len(ids), dtype=bool)
        wanted_P[np.linspace(0, len(ids) - 1, num_wanted).astype(np.int64)] = True
        parts = _only(windows.in_context(ids, *how, before), wanted_P)
    for read in windows.read_windows(model, parts, World()):
        log_z_N, score_N = model.output.normalise(read.hidden_ND, read.target_N)
        if with_hidden:
            hidden.append(read.hidden_ND.double().cpu().numpy())
        scores.append(score_N.double().cpu().numpy())
        log_zs.append(log_z_N.double().cpu().numpy())
        positions.append(read.position_N.numpy())
        tell(read.num_scored)
    order_N = np.argsort(np.concatenate(positions))[:num_wanted]  # all, or all but a few at the end
    hidden_ND = np.concatenate(hidden)[order_N] if with_hidden else None
    return hidden_ND, np.concatenate(scores)[order_N], np.concatenate(log_zs)[order_N]


def _some_sentences(ids: np.ndarray, num_wanted: int) -> np.ndarray:
    """Take sentences that are spread evenly over a text, with as many words as are wanted or a few more."""
    border_S = np.concatenate([[0], np.flatnonzero(ids[:-1] == END) + 1, [len(ids)]])
    length_S = np.diff(border_S)
    # In an order of which any beginning is spread over the text: that of the fractions of a golden step.
    spread_S = np.argsort(np.arange(len(length_S)) * 0.6180339887498949 % 1.0, kind="stable")
    num_taken = int(np.searchsorted(np.cumsum(length_S[spread_S]), num_wanted)) + 1
    return np.concatenate([ids[border_S[number] : border_S[number + 1]] for number in np.sort(spread_S[:num_taken])])


def _some_windows(
    ids: np.ndarray, num_windows: int, every: int, num_parallel: int, num_context: int, before: int
) -> Iterator[windows.Window]:
    """Cut windows out of a text that is longer, evenly spread, and score every so many words of each.

    They are as long as those of `windows.in_context` and are read as those are. What depends on how far a word is from
    where reading began, as ln Z(context) does, is then the same on average.
    """
    start_W = np.linspace(0, len(ids) - before - windows.WINDOW, num_windows).astype(np.int64)
    place_T1 = np.arange(before + windows.WINDOW)[:, None]
    for first in range(0, num_windows, num_parallel):
        start_B = start_W[first : first + num_parallel]
        number_B = np.arange(first, first + len(start_B))
        position_LB = np.arange(-1 - num_context, before + windows.WINDOW)[:, None] + start_B
        scored_TB = (place_T1 >= before) & ((place_T1 - before + number_B) % every == 0)
        yield windows.make_window(ids, position_LB, position_LB >= 0, scored_TB)


def _only(parts: Iterable[windows.Window], wanted_P: np.ndarray) -> Iterator[windows.Window]:
    """Score only some positions of a text."""
    wanted = torch.from_numpy(wanted_P)
    for part in parts:
        yield part._replace(scored_TB=part.scored_TB & wanted[part.position_TB.clamp(0, len(wanted) - 1)])
