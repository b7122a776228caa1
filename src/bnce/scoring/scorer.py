"""A model as a beam search sees it: states that advance by a word, and the log-probabilities of the next words.

All logarithms are natural. A state stands for a whole history; it is never changed, so hypotheses may share one, and
any number of them go through the network side by side. `prefixes` scores whole lists of hypotheses with it.

Legend: T time steps, B states side by side, C context words of an n-gram body, L = C + T, D hidden, K words per state,
N pairs of a state and words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bnce.corpus.vocabulary import END
from bnce.errors import UserError
from bnce.scoring.engine import Array, Engine, Ints, engine_of
from bnce.scoring.engine import State as NetworkState

# A sequence with more words is read by itself; of a very long one, so many words at a time.
LONG_WORDS = 64
PASS_WORDS = 2**12

Words = Any  # a tensor, an array or lists of ids


@dataclass(eq=False)
class States:
    """B histories side by side: what the network needs to go on from each, and the hidden layer it has come to."""

    engine: Engine
    context_CB: Ints
    network: NetworkState
    hidden_BD: Array
    _log_normaliser_B: Array | None = None

    def __len__(self) -> int:
        return len(self.hidden_BD)

    @property
    def log_normalisers(self) -> Array:
        """Values of ln Z(context), NaN where nobody has asked: one costs as much as hundreds of steps at V = 800K."""
        if self._log_normaliser_B is None:
            self._log_normaliser_B = self.engine.array(np.full(len(self), np.nan, dtype=np.float32))
        return self._log_normaliser_B

    def select(self, place_B: Ints) -> States:
        """Take some of the states, in any order, also repeatedly."""
        take, known = self.engine.take, self._log_normaliser_B
        return States(
            self.engine,
            self.context_CB[:, place_B],
            tuple(take(part, place_B, 1) for part in self.network),
            take(self.hidden_BD, place_B),
            None if known is None else take(known, place_B),
        )


class State(NamedTuple):
    """One history: a place among states that were computed together."""

    states: States
    place: int


class Entered(NamedTuple):
    """Different words, in the order of their ids, and what an engine has computed of them."""

    word_W: Ints
    rows: Array


class Scorer:
    """Scores words with one model; words are ids. Results are tensors (run) or NumPy arrays (exported run)."""

    def __init__(self, model: Any) -> None:
        self.engine = engine_of(model)
        self._start: States | None = None

    def start(self) -> State:
        """Give the state at the start of a sentence: after `</s>`, with nothing before it."""
        return State(self.start_states(), 0)

    def advance(self, states: Sequence[State], words: Words) -> list[State]:
        """Move each state on by one word, all of them in one pass through the network."""
        if not states:
            return []
        moved = self.advance_states(gather(states), self._words(states, words))
        return [State(moved, place) for place in range(len(states))]

    def read(self, states: Sequence[State], sequences: Sequence[Sequence[int]]) -> list[State]:
        """Advance each state by its own sequence of words; words at the same place are computed together.

        A long sequence goes alone and in one pass: word by word it takes twenty times as long.
        """
        after = list(states)
        long = {number for number, sequence in enumerate(sequences) if len(sequence) > LONG_WORDS}
        for number in long:
            after[number] = self._read_long(after[number], sequences[number])
        short = [number for number in range(len(after)) if number not in long]
        for place in range(max((len(sequences[number]) for number in short), default=0)):
            going = [number for number in short if place < len(sequences[number])]
            moved = self.advance(
                [after[number] for number in going], [int(sequences[number][place]) for number in going]
            )
            for number, state in zip(going, moved, strict=True):
                after[number] = state
        return after

    def score(self, states: Sequence[State], words: Words, normalised: bool = False) -> Array:
        """Compute ln p of words after states: one each (B,) or several each (B, K).

        Unnormalised reads only the rows of these words. Normalised passes over the vocabulary once for each state
        that was never normalised before.
        """
        if not states:
            return self.engine.array(np.zeros(0, dtype=np.float32))
        words_B = self._words(states, words, several=True)
        if normalised:
            self._normalise(states)
        return self.score_words(gather(states), np.arange(len(states)), words_B, normalised)

    def score_all(self, state: State, normalised: bool = False) -> Array:
        """Compute ln p of every word of the vocabulary (V,) after one state."""
        if not normalised:
            self.engine.refuse_unnormalised()
        score_1V = self.engine.all_scores(state.states.hidden_BD[state.place : state.place + 1])
        constant = self.engine.log_z
        if normalised:
            constant = float(np.logaddexp.reduce(self.engine.numpy(score_1V)[0].astype(np.float64)))
        return score_1V[0] - constant

    def start_states(self) -> States:
        """Give the start of a sentence as a batch of one state."""
        if self._start is None:
            context_CB = np.full((self.engine.num_context, 1), END, dtype=np.int64)
            self._start = self._pass(context_CB, self.engine.initial_state(1), np.full((1, 1), END, dtype=np.int64))
        return self._start

    def advance_states(self, states: States, word_B: Ints) -> States:
        """Advance a batch of states by one word each."""
        return self._pass(states.context_CB, states.network, word_B[None])

    def enter(self, word_N: Ints) -> Entered | None:
        """Compute what depends on the word only, for `branch_states`; None if there is nothing."""
        if not self.engine.branches:
            return None
        word_W = np.unique(word_N)
        return Entered(word_W, self.engine.enter(word_W))

    def branch_states(self, states: States, parent_B: Ints, word_B: Ints, entered: Entered | None) -> States:
        """Advance the states at these places by one word each: cheaper if states and words repeat."""
        if entered is None:
            return self.advance_states(states.select(parent_B), word_B)
        word_B = np.searchsorted(entered.word_W, word_B)
        before, num_states = states.network, len(states)
        if len(parent_B) < num_states:
            parent_P, parent_B = np.unique(parent_B, return_inverse=True)
            if len(parent_P) < num_states:
                before = tuple(self.engine.take(part, parent_P, 1) for part in before)
        hidden_BD, after = self.engine.branch(entered.rows, word_B, before, parent_B)
        return States(self.engine, np.zeros((0, len(word_B)), dtype=np.int64), after, hidden_BD)

    def score_words(self, states: States, place_N: Ints, words: Ints, normalised: bool = False) -> Array:
        """Compute ln p of words (N,) or (N, K) after the states at these places; each state is normalised once."""
        if not normalised:
            self.engine.refuse_unnormalised()
        words_NK = words.reshape(len(place_N), -1)
        score_NK = self.engine.scores(self.engine.take(states.hidden_BD, place_N), words_NK)
        constant: Any = self.engine.log_z
        if normalised:
            constant = self.engine.take(self.log_normaliser(states), place_N)[:, None]
        return (score_NK - constant).reshape(words.shape)

    def log_normaliser(self, states: States) -> Array:
        """Compute ln Z(context) of every state (B,), and keep it."""
        known_B = states.log_normalisers
        (missing,) = np.nonzero(np.isnan(self.engine.numpy(known_B)))
        if len(missing):
            found = self.engine.log_normaliser(self.engine.take(states.hidden_BD, missing))
            self.engine.put(known_B, missing, found)
        return known_B

    def _normalise(self, states: Sequence[State]) -> None:
        """Keep ln Z(context) with the very states it belongs to, which copies of them then have, too."""
        by_source: dict[States, list[int]] = {}
        for source, place in dict.fromkeys((state.states, state.place) for state in states):
            by_source.setdefault(source, []).append(place)
        missing = []
        for source, places in by_source.items():
            known_B = self.engine.numpy(source.log_normalisers)
            missing += [State(source, place) for place in places if np.isnan(known_B[place])]
        if missing:
            found = self.log_normaliser(gather(missing))
            for number, state in enumerate(missing):
                self.engine.put(state.states.log_normalisers, np.array([state.place]), found[number])

    def _read_long(self, state: State, words: Sequence[int]) -> State:
        states = gather([state])
        word_T = np.asarray(words, dtype=np.int64)
        self.engine.check_ids(int(word_T.min()), int(word_T.max()))
        for begin in range(0, len(word_T), PASS_WORDS):
            states = self._pass(states.context_CB, states.network, word_T[begin : begin + PASS_WORDS, None])
        return State(states, 0)

    def _pass(self, context_CB: Ints, network: NetworkState, word_TB: Ints) -> States:
        input_LB = np.concatenate([context_CB, word_TB])
        hidden_TBD, after = self.engine.run(input_LB, network)
        return States(self.engine, input_LB[len(word_TB) :], after, hidden_TBD[-1])

    def _words(self, states: Sequence[State], words: Words, several: bool = False) -> Ints:
        """Take words as an array, refusing what does not fit the states or the vocabulary."""
        shape = f"({len(states)},)" + (f" or ({len(states)}, k)" if several else "")
        try:
            given = np.asarray(words.cpu() if hasattr(words, "cpu") else words)
            if given.dtype.kind not in "iuf":
                raise ValueError(f"their type is {given.dtype}")
        except (TypeError, ValueError) as error:
            raise UserError(f"The words are not a table of ids ({error}): give ids {shape}.") from error
        if given.ndim not in ((1, 2) if several else (1,)) or len(given) != len(states) or given.dtype.kind == "f":
            raise UserError(
                f"{len(states)} states and words of shape {tuple(given.shape)} do not fit: give ids {shape}."
            )
        given = given.astype(np.int64)
        if given.size:
            self.engine.check_ids(int(given.min()), int(given.max()))
        return given


def gather(states: Sequence[State]) -> States:
    """Lay states side by side, in their order."""
    places: dict[States, list[int]] = {}
    for order, state in enumerate(states):
        places.setdefault(state.states, []).append(order)
    parts = []
    for source, orders in places.items():
        chosen = [states[order].place for order in orders]
        whole = chosen == list(range(len(source)))
        parts.append(source if whole else source.select(np.array(chosen)))
    if len(parts) == 1:
        return parts[0]
    join = parts[0].engine.concatenate
    joined = States(
        parts[0].engine,
        np.concatenate([part.context_CB for part in parts], axis=1),
        tuple(join(own, 1) for own in zip(*(part.network for part in parts), strict=True)),
        join([part.hidden_BD for part in parts]),
        join([part.log_normalisers for part in parts]),
    )
    return joined.select(np.argsort([order for orders in places.values() for order in orders]))
