"""Any number of texts of any length in rows side by side, which go through a network a chunk at a time.

A row reads one text. Where it ends, the row is free, and takes the next text or is left out, so that a chunk becomes
narrower. A long text goes on in its row from chunk to chunk. Where a network has passes of fixed steps, texts begin
anywhere in a chunk, and chunks are full; else they begin where chunks do.

Legend: T time steps of a chunk, B rows, C context words of an n-gram body, L = C + T, N positions, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bnce.corpus.vocabulary import END
from bnce.engine.network import (
    Bools,
    Ints,
    Network,
    Query,
    State,
    States,
    Values,
    before_text,
    gather,
    join,
)
from bnce.engine.prefix_tree import score_tree

# Steps of a chunk, unless all texts end before: shorter ones cost more calls than their empty places do.
MIN_STEPS = 16
# A tree goes word by word: a long text that is alone there takes twenty times as long as in one pass, and few texts
# have little in common, unless they are hypotheses of one utterance.
MAX_TREE_WORDS, MAX_SHARED_WORDS = 64, 512
MIN_TREE_TEXTS = 16


class Passage(NamedTuple):
    """Ids to read, from the start of a text or after a state, and which of them are asked for."""

    ids: Ints
    first: int = 0  # words before this one are only read
    asked: Bools | None = None  # which words; None: all from the first
    state: State | None = None


class Scored(NamedTuple):
    """What was found of a passage: of the words that were asked for, in their order."""

    number: int  # of the passage among all
    values: Values
    after: State | None  # after its last word, if states are kept


def score_rows(
    network: Network,
    passages: Iterable[Passage],
    query: Query = Query(),  # noqa: B008 - it is frozen
    *,
    refill: bool = True,
    keep_states: bool = False,
) -> Iterator[Scored]:
    """Score passages side by side; each result comes when its passage has ended.

    With `refill` a free row takes the next passage, in their order; without it new ones are taken when all have ended,
    which leaves little empty where neighbours are of like length.
    """
    rows = _Rows(network, passages, query, refill, keep_states)
    finish: Callable[[], Iterator[Scored]] | None = None
    while True:
        next_finish = rows.begin_chunk()
        # The host lays out a chunk and begins it while a GPU computes the one before.
        if finish is not None:
            yield from finish()
        elif next_finish is None:
            return
        finish = next_finish


def score(
    network: Network,
    texts: Sequence[Ints],
    query: Query = Query(),  # noqa: B008 - it is frozen
    *,
    after: Sequence[State] | None = None,
    share: bool = False,
) -> Values:
    """Score every word of texts, from their starts or each `after` a state of its own: the values of one after another.

    Where the network prefers it, short texts are read as a tree. `share` says that they begin alike, as lists of
    hypotheses do, so that also a few of them, and longer ones, are.
    """
    length_S = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    is_short_S = length_S <= (MAX_SHARED_WORDS if share else MAX_TREE_WORDS)
    in_tree_S = is_short_S & (network.prefers_tree and (share or is_short_S.sum() >= MIN_TREE_TEXTS))
    tree = np.flatnonzero(in_tree_S).tolist()
    # The longest first: of neighbours of like length little is padding.
    rows = [number for number in np.argsort(-length_S, kind="stable").tolist() if not in_tree_S[number]]
    parts, order = [], tree
    if tree:
        own = None if after is None else [after[number] for number in tree]
        parts.append(score_tree(network, [texts[number] for number in tree], query, own))
    if rows:
        passages = (Passage(texts[number], state=None if after is None else after[number]) for number in rows)
        scored = list(score_rows(network, passages, query, refill=False))
        parts += [one.values for one in scored]
        order = order + [rows[one.number] for one in scored]
    # Back into the order in which they were given.
    length_O, begin_O = length_S[order], (np.cumsum(length_S) - length_S)[order]
    place_N = np.arange(int(length_S.sum())) + np.repeat(begin_O - (np.cumsum(length_O) - length_O), length_O)
    inverse_N = np.empty_like(place_N)
    inverse_N[place_N] = np.arange(len(place_N))
    return join(parts, query).select(inverse_N)


class _Reading:
    """A passage in a row: its words, with `</s>` before them at the start of a text, and how far they are read."""

    __slots__ = ("asked", "end", "number", "parts", "place", "state", "words")

    def __init__(self, number: int, passage: Passage, keep_states: bool) -> None:
        ids, first, asked, self.state = passage
        self.number, self.place, self.words = number, 0, ids
        if self.state is None:
            self.words = np.empty(len(ids) + 1, dtype=np.int64)
            self.words[0], self.words[1:] = END, ids
        # Of what is read: the last word only for the state after it.
        self.end = max(0, len(self.words) - (not keep_states))
        self.asked: Bools | None = None  # for every word that follows one of `words`; None: all
        if first or asked is not None:
            is_asked_N = np.arange(len(ids)) >= first
            self.asked = is_asked_N if asked is None else is_asked_N & asked
        self.parts: list[Values] = []

    def take_given(self) -> bool:
        """Say whether the first word is asked for after the state that is given, for which nothing need be read."""
        if self.state is None or not len(self.words):
            return False
        is_asked = self.asked is None or bool(self.asked[0])
        self.asked = None if self.asked is None else self.asked[1:]
        return is_asked


class _Rows:
    """The rows: what each reads, and its state."""

    def __init__(
        self, network: Network, passages: Iterable[Passage], query: Query, refill: bool, keep_states: bool
    ) -> None:
        self.network, self.query, self.refill, self.keep_states = network, query, refill, keep_states
        self._passages = enumerate(passages)
        self._start = State(before_text(network), 0)
        # Within a chunk nobody could tell the state at the end of a text.
        self._fixed_steps = None if keep_states else network.fixed_steps
        self._rows: list[_Reading] = []
        self._states: list[State] = []  # of the rows, and where resets were in their context
        self._reset_CB = np.zeros((network.num_context, 0), dtype=bool)
        self._held: _Reading | None = None  # has a state, for which a chunk must begin
        # What the next chunk finishes beside its rows: first words after a given state, and texts with nothing to read.
        self._given: list[_Reading] = []
        self._unread: list[_Reading] = []

    def begin_chunk(self) -> Callable[[], Iterator[Scored]] | None:
        """Lay out a chunk and begin to compute it; call the result for what has ended. None: all have been read."""
        network, C = self.network, self.network.num_context
        self._fill()
        given, unread, self._given, self._unread = self._given, self._unread, [], []
        answers = [self._answer_given(given)] if given else []
        segments = [(reading, 1) for reading in given]
        if not self._rows:
            return (lambda: self._finish(answers, segments, [], unread, None)) if unread else None
        rows, states = self._rows, self._gather()
        T, B = self._num_steps(), len(states)
        word_BT = np.full((B, T), END, dtype=np.int64)
        target_BT, is_asked_BT = word_BT.copy(), np.zeros((B, T), dtype=bool)
        reset_LB = np.zeros((C + T, B), dtype=bool)
        reset_LB[:C, : self._reset_CB.shape[1]] = self._reset_CB
        kept: list[int] = []
        ended: list[tuple[_Reading, int]] = []
        self._rows = []
        # Of thousands of texts per chunk each costs the host time: slices of these arrays, and no array for each.
        for row, first in enumerate(rows):
            reading: _Reading | None = first
            level = 0
            while reading is not None:
                begin = reading.place
                end = reading.place = min(reading.end, begin + T - level)
                num_scored = min(end, len(reading.words) - 1) - begin
                own = slice(level, level + num_scored)
                word_BT[row, level : level + end - begin] = reading.words[begin:end]
                target_BT[row, own] = reading.words[begin + 1 : begin + 1 + num_scored]
                is_asked_BT[row, own] = True
                if reading.asked is not None:
                    is_asked_BT[row, own] = is_asked_N = reading.asked[begin : begin + num_scored]
                    num_scored = int(np.count_nonzero(is_asked_N))
                segments.append((reading, num_scored))
                reset_LB[C + level, row] = not begin and reading.state is None
                level += end - begin
                if end < reading.end:
                    kept.append(row)
                    self._rows.append(reading)
                    break
                ended.append((reading, row))
                reading = self._next_within(level < T)
        network.check_ids(word_BT)
        network.check_ids(target_BT)
        ids_LB = np.concatenate([states.context_CB, word_BT.T])
        hidden_TBD, parts = network.forward(ids_LB, states.parts, reset_LB if self._fixed_steps else None)
        row_N, step_N = np.nonzero(is_asked_BT)
        hidden_ND = network.take(hidden_TBD.reshape(T * B, -1), step_N * B + row_N)
        answers.append(network.begin_answer(hidden_ND, target_BT[is_asked_BT], self.query))
        after = States(network, ids_LB[T:], parts, hidden_TBD[-1])
        self._states, self._reset_CB = [State(after, row) for row in kept], reset_LB[T:, kept]
        return lambda: self._finish(answers, segments, ended, unread, after)

    def _fill(self) -> None:
        """Let free rows take new passages, and put rows without any beside them where a pass has fixed shapes."""
        network = self.network
        if self.refill or not self._rows:
            while len(self._rows) < network.max_rows and (reading := self._next()) is not None:
                self._rows.append(reading)
                self._states.append(reading.state or self._start)
        if self._rows and self._fixed_steps is not None:
            self._states += [self._start] * (network.width(len(self._rows)) - len(self._rows))

    def _gather(self) -> States:
        """Lay the states of the rows side by side; where all texts begin, none need be copied."""
        start, B = self._start.states, len(self._states)
        if any(state is not self._start for state in self._states):
            return gather(self._states)
        hidden_BD = self.network.take(start.hidden_BD, np.zeros(B, dtype=np.int64))
        return States(self.network, start.context_CB.repeat(B, axis=1), self.network.initial_state(B), hidden_BD)

    def _next(self) -> _Reading | None:
        """Take the next passage in which there is something to read."""
        if self._held is not None:
            held, self._held = self._held, None
            return held
        for number, passage in self._passages:
            reading = _Reading(number, passage, self.keep_states)
            if reading.take_given():
                self._given.append(reading)
            if reading.end:
                return reading
            self._unread.append(reading)
        return None

    def _next_within(self, has_room: bool) -> _Reading | None:
        """Take the next passage if it may begin in the middle of a chunk."""
        if not has_room or not self.refill or self._fixed_steps is None or self._held is not None:
            return None
        reading = self._next()
        if reading is not None and reading.state is not None:
            self._held, reading = reading, None
        return reading

    def _num_steps(self) -> int:
        """Choose the steps of a chunk: up to where a text ends, so that few places are empty."""
        if self._fixed_steps is not None:
            return self._fixed_steps
        lefts = [reading.end - reading.place for reading in self._rows]
        fewest = 1 if self.keep_states else MIN_STEPS  # a state is that of a text only if the chunk ends there, too
        return min(max(lefts), max(min(lefts), fewest), max(1, self.network.max_positions // len(lefts)))

    def _answer_given(self, given: Sequence[_Reading]) -> Callable[[], Values]:
        hidden_BD = gather([reading.state for reading in given if reading.state is not None]).hidden_BD
        word_B = np.array([reading.words[0] for reading in given], dtype=np.int64)
        self.network.check_ids(word_B)
        return self.network.begin_answer(hidden_BD, word_B, self.query)

    def _finish(
        self,
        answers: Sequence[Callable[[], Values]],
        segments: Sequence[tuple[_Reading, int]],
        ended: Sequence[tuple[_Reading, int]],
        unread: Sequence[_Reading],
        after: States | None,
    ) -> Iterator[Scored]:
        """Hand out what was answered to the passages it is of, and give those that have ended."""
        if answers:
            values, begin = join([answer() for answer in answers]), 0
            for reading, size in segments:
                reading.parts.append(values.select(slice(begin, begin + size)))
                begin += size
        for reading, row in ended:
            state = State(after, row) if self.keep_states and after is not None else None
            yield Scored(reading.number, join(reading.parts), state)
        for reading in unread:
            yield Scored(reading.number, join(reading.parts, self.query), reading.state)
