"""Log-probabilities of many sentences at once, with the constant Z or with the softmax. Logarithms are natural.

Each sentence starts from a fresh state. On a CPU a recurrent body reads sentences as a tree: what begins alike is read
once, and the product of a word with the input weights is computed once for all its places. Otherwise sentences of like
length go through the network side by side. Carried over, the text is one stream. Only the output rows of the words that
occur are read, unless the softmax is asked for.

Legend: T time steps, B sentences side by side, C context words of an n-gram body, L = C + T, D hidden, N positions,
S sentences, P rows of the hidden layer that positions share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import END
from bnce.errors import UserError
from bnce.scoring.engine import Array, Engine, Ints, engine_of
from bnce.scoring.prefixes import TREE_SEQUENCES, Level, flatten, split, walk
from bnce.scoring.scorer import Scorer

# Words laid out at once, padding counted: a few very long sentences stand alone.
GROUP_WORDS = 2**20
# A tree goes word by word: a long sentence that is alone there takes twenty times as long as in one pass, and few
# sentences have little in common.
MAX_TREE_WORDS = 64
MIN_TREE_SENTENCES = 16
# Rows of the hidden layer that wait for each other where all of the output layer is read: it is read once for all.
MIN_ROWS = 512

Ids = Sequence[int] | Ints
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Check:
    """How far the constant is from the truth on a sample of positions; differences of ln p are unnormalised − exact."""

    num_positions: int
    mean_difference: float
    max_difference: float  # of absolute values
    log_z: float  # the constant, ln Z
    log_z_mean: float  # of ln Z(context)
    log_z_std: float


class SentenceScorer:
    """Scores sentences of ids, any number of times over; with `carry` each goes on from where the one before ended.

    Probabilities are the softmax's (`normalised`), or with the constant Z. With `num_checked`, so many random
    positions are kept, and `check` compares the constant with the softmax there.
    """

    def __init__(
        self,
        model: Any,
        *,
        normalised: bool = False,
        carry: bool = False,
        num_checked: int | None = None,
    ) -> None:
        self.engine, self.normalised = engine_of(model), normalised
        if not normalised or num_checked is not None:
            self.engine.refuse_unnormalised()
        self._num_parallel = self.engine.num_side_by_side(self.engine.num_parallel)
        self._stream = _Stream(self.engine) if carry else None
        self._sample = None if num_checked is None else _Sample(num_checked)
        self._tree = Scorer(self.engine) if self.engine.reads_trees else None

    def begin_document(self) -> None:
        """Start afresh: forget the earlier sentences."""
        if self._stream is not None:
            self._stream = _Stream(self.engine)

    def score(self, sentences: Sequence[Ids]) -> list[Floats]:
        """Compute ln p of every word of every sentence; `</s>` is scored where a sentence holds it."""
        if not sentences:
            return []
        word_N, length_S = flatten(sentences)
        self.engine.check_ids(int(word_N.min(initial=0)), int(word_N.max(initial=0)))
        end_S = np.cumsum(length_S)
        log_prob_N = np.zeros(len(word_N))
        if self._stream is not None:
            log_prob_N = self._score_stream(self._stream, word_N)
        else:
            in_tree_S = length_S <= (MAX_TREE_WORDS if self._tree is not None else 0)
            in_tree_S &= in_tree_S.sum() >= MIN_TREE_SENTENCES
            if self._tree is not None and in_tree_S.any():
                in_tree_N = np.repeat(in_tree_S, length_S)
                log_prob_N[in_tree_N] = self._score_trees(self._tree, word_N[in_tree_N], length_S[in_tree_S])
            self._score_apart(word_N, np.where(in_tree_S, 0, length_S), end_S - length_S, log_prob_N)
        return split(log_prob_N, length_S)

    def check(self) -> Check | None:
        """Compute the exact values at the sample of positions; None where none is kept."""
        if self._sample is None:
            return None
        log_z = self.engine.log_z
        hidden_ND = self._sample.hidden_ND
        if hidden_ND is None:
            nan = float("nan")
            return Check(0, nan, nan, log_z, nan, nan)
        log_normaliser_N = self.engine.numpy(self.engine.log_normaliser(hidden_ND)).astype(np.float64)
        difference_N = log_normaliser_N - log_z
        return Check(
            num_positions=len(hidden_ND),
            mean_difference=float(difference_N.mean()),
            max_difference=float(np.abs(difference_N).max()),
            log_z=log_z,
            log_z_mean=float(log_normaliser_N.mean()),
            log_z_std=float(log_normaliser_N.std()),
        )

    def _score_trees(self, scorer: Scorer, word_N: Ints, length_S: Ints) -> Floats:
        """Score sentences that begin alike together; each different beginning is read once."""
        log_prob_N = np.zeros(len(word_N))
        begin_S = np.cumsum(length_S) - length_S
        entered = scorer.enter(word_N)
        # Those that begin with the same word go into the same tree.
        order_S = np.argsort(word_N[np.minimum(begin_S, len(word_N) - 1)], kind="stable")
        for begin in range(0, len(length_S), TREE_SEQUENCES):
            own_S = order_S[begin : begin + TREE_SEQUENCES]
            place_N = _places(begin_S[own_S], length_S[own_S])
            waiting: list[tuple[Level, Array]] = []
            for level, states in walk(scorer, word_N[place_N], length_S[own_S], entered=entered):
                self._keep(states.hidden_BD, level.parent_B[level.node_A])
                waiting.append((level, states.hidden_BD))
                if not self.normalised or sum(len(hidden_BD) for _, hidden_BD in waiting) >= MIN_ROWS:
                    self._score_levels(waiting, place_N, log_prob_N)
                    waiting = []
            self._score_levels(waiting, place_N, log_prob_N)
        return log_prob_N

    def _score_levels(self, waiting: Sequence[tuple[Level, Array]], place_N: Ints, log_prob_N: Floats) -> None:
        if not waiting:
            return
        levels, hiddens = zip(*waiting, strict=True)
        first_row = np.cumsum([0, *map(len, hiddens)])
        parent_B = np.concatenate([level.parent_B + row for level, row in zip(levels, first_row, strict=False)])
        word_B = np.concatenate([level.word_B for level in levels])
        hidden_PD = hiddens[0] if len(hiddens) == 1 else self.engine.concatenate(hiddens)
        value_B = self._values(hidden_PD, parent_B, word_B)
        for level, value in zip(levels, split(value_B, np.array([len(level.word_B) for level in levels])), strict=True):
            log_prob_N[place_N[level.position_A]] = value[level.node_A]

    def _score_apart(self, word_N: Ints, length_S: Ints, begin_S: Ints, log_prob_N: Floats) -> None:
        # The longest first: in a group of neighbours little is padding, and those that go on are the first ones.
        order_S = np.argsort(-length_S, kind="stable")
        num_before = 1 + self.engine.num_context
        for group_B in _groups(order_S, length_S, self._num_parallel):
            length_B = length_S[group_B]
            place_N = _places(begin_S[group_B], length_B)
            inside_BT = np.arange(length_B[0]) < length_B[:, None]
            word_LB = np.full((num_before + length_B[0], len(group_B)), END, dtype=np.int64)
            word_LB[num_before:].T[inside_BT] = word_N[place_N]
            log_prob_N[place_N] = self._score_group(word_LB, length_B).T[inside_BT]

    def _score_group(self, word_LB: Ints, length_B: Ints, stream: _Stream | None = None) -> Floats:
        """Score sentences side by side, the longest first, or what comes next in a stream.

        `word_LB` has their context before them.
        """
        num_context = self.engine.num_context
        num_steps = len(word_LB) - 1 - num_context
        log_prob_TB = np.zeros((num_steps, len(length_B)))
        state = self.engine.initial_state(len(length_B)) if stream is None else stream.state
        begin = 0
        while begin < num_steps:
            num_active = int((length_B > begin).sum())
            end = min(num_steps, begin + max(1, self.engine.pass_words // num_active))
            if begin and num_active < len(length_B):
                state = tuple(self.engine.take(part, np.arange(num_active), 1) for part in state)
            hidden_TBD, state = self.engine.run(word_LB[begin : end + num_context, :num_active], state)
            inside_TB = np.arange(begin, end)[:, None] < length_B[:num_active]
            target_TB = word_LB[1 + num_context :][begin:end, :num_active]
            place_N = np.flatnonzero(inside_TB)
            hidden_PD = hidden_TBD.reshape(-1, hidden_TBD.shape[-1])
            log_prob_TB[begin:end, :num_active][inside_TB] = self._values(hidden_PD, place_N, target_TB[inside_TB])
            self._keep(hidden_PD, place_N)
            begin = end
        if stream is not None:
            stream.state = state
        return log_prob_TB

    def _score_stream(self, stream: _Stream, word_N: Ints) -> Floats:
        """Score the next words of a text that never starts anew."""
        word_LB = np.concatenate([stream.last_words, word_N])[:, None]
        log_prob_TB = self._score_group(word_LB, np.array([len(word_N)]), stream)
        stream.last_words = word_LB[len(word_N) :, 0].copy()
        return log_prob_TB[:, 0]

    def _values(self, hidden_PD: Array, place_N: Ints, target_N: Ints) -> Floats:
        """Compute ln p of targets, each after the row of the hidden layer at its place."""
        engine = self.engine
        score_N1 = engine.numpy(engine.scores(engine.take(hidden_PD, place_N), target_N[:, None]))
        constant: Any = engine.log_z
        if self.normalised:
            place_P, place_N = np.unique(place_N, return_inverse=True)
            constant = engine.numpy(engine.log_normaliser(engine.take(hidden_PD, place_P)))[place_N]
        log_prob_N: Floats = score_N1[:, 0].astype(np.float64) - constant
        return log_prob_N

    def _keep(self, hidden_PD: Array, place_N: Ints) -> None:
        if self._sample is not None:
            self._sample.add(self.engine, hidden_PD, place_N)


class _Stream:
    """Where a text that is carried over has come to: the words that come next are predicted from here."""

    def __init__(self, engine: Engine) -> None:
        self.state = engine.initial_state(1)
        self.last_words = np.full(1 + engine.num_context, END, dtype=np.int64)


class _Sample:
    """Positions drawn fairly from as many as come by: each draws a number, and the smallest numbers stay."""

    def __init__(self, size: int, seed: int = 1) -> None:
        if size < 1:
            raise UserError(f"The number of positions to check is {size}: it must be 1 or more.")
        self.size = size
        self.hidden_ND: Array | None = None
        self._draw_N = np.zeros(0)
        self._generator = np.random.default_rng(seed)

    def add(self, engine: Engine, hidden_PD: Array, position_N: Ints) -> None:
        """Let some positions take part, each with the row of the hidden layer at its place."""
        draw_N = self._generator.random(len(position_N))
        limit = self._draw_N.max() if len(self._draw_N) == self.size else 1.0
        (place_N,) = np.nonzero(draw_N < limit)
        chosen_ND = engine.take(hidden_PD, position_N[place_N])
        both_ND = chosen_ND if self.hidden_ND is None else engine.concatenate([self.hidden_ND, chosen_ND])
        both_N = np.concatenate([self._draw_N, draw_N[place_N]])
        kept_N = np.argsort(both_N)[: self.size]
        self._draw_N, self.hidden_ND = both_N[kept_N], engine.take(both_ND, kept_N)


def _places(begin_S: Ints, length_S: Ints) -> Ints:
    """List the places of sentences that begin here and there."""
    shift_S = begin_S - (np.cumsum(length_S) - length_S)
    return np.repeat(shift_S, length_S) + np.arange(int(length_S.sum()))


def _groups(order_S: Ints, length_S: Ints, num_parallel: int) -> Iterator[Ints]:
    """Cut sentences, the longest first, into groups that go through the network together; empty ones need not."""
    begin = 0
    num_sentences = int(np.count_nonzero(length_S))
    while begin < num_sentences:
        longest = int(length_S[order_S[begin]])
        end = min(num_sentences, begin + max(1, min(num_parallel, GROUP_WORDS // longest)))
        yield order_S[begin:end]
        begin = end
