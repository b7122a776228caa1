"""A network as a beam search sees it: states that advance by a word, and ln p of the next words.

A state stands for a whole history; it is never changed, so hypotheses may share one, and any number of them go through
the network side by side.

Legend: B states side by side, K words per state, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bnce.corpus.vocabulary import END
from bnce.engine.network import Array, Ints, Mode, Network, State, States, before_text, gather
from bnce.engine.packer import Passage, score_rows
from bnce.errors import UserError

Words = Any  # a tensor, an array or lists of ids


class Scorer:
    """Scores words after states; words are ids, and logarithms are natural. `model.scorer()` makes one.

    Results are NumPy arrays on a CPU and tensors on a GPU.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self._start: State | None = None

    def start(self) -> State:
        """Give the state at the start of a sentence: after `</s>`, with nothing before it."""
        if self._start is None:
            self._start = State(self._pass(before_text(self.network), np.array([END])), 0)
        return self._start

    def advance(self, states: Sequence[State], words: Words) -> list[State]:
        """Move each state on by one word, all of them in one pass through the network."""
        if not states:
            return []
        moved = self._pass(gather(states), self._words(states, words))
        return [State(moved, place) for place in range(len(states))]

    def read(self, states: Sequence[State], sequences: Sequence[Sequence[int] | Ints]) -> list[State]:
        """Move each state on by a sequence of its own."""
        ids = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
        passages = [Passage(own, first=len(own), state=state) for own, state in zip(ids, states, strict=True)]
        after = {one.number: one.after for one in score_rows(self.network, passages, keep_states=True)}
        return [after[number] or state for number, state in enumerate(states)]

    def score(self, states: Sequence[State], words: Words, mode: Mode | None = None) -> Array:
        """Compute ln p of words after states: one each (B,) or several each (B, K).

        Unnormalised reads only the rows of these words, and is the default where the model has a constant Z. Normalised
        passes over the vocabulary once for each state that was never normalised before.
        """
        network, mode = self.network, self.network.choose_mode(mode)
        if not states:
            return network.array(np.zeros(0, dtype=np.float32))
        words_B = self._words(states, words, several=True)
        if mode == "normalised":
            self._normalise(states)
        beam = gather(states)
        score_BK = network.scores(beam.hidden_BD, words_B.reshape(len(states), -1))
        constant: Any = beam.log_normalisers[:, None] if mode == "normalised" else network.log_z
        return (score_BK - constant).reshape(words_B.shape)

    def score_all(self, state: State, mode: Mode | None = None) -> Array:
        """Compute ln p of every word of the vocabulary (V,) after one state."""
        network = self.network
        constant: Any = network.log_z
        score_V = network.all_scores(state.states.hidden_BD[state.place : state.place + 1])[0]
        if network.choose_mode(mode) == "normalised":
            constant = float(np.logaddexp.reduce(network.numpy(score_V).astype(np.float64)))
        return score_V - constant

    def _pass(self, states: States, word_B: Ints) -> States:
        ids_LB = np.concatenate([states.context_CB, word_B[None]])
        hidden_1BD, parts = self.network.forward(ids_LB, states.parts)
        return States(self.network, ids_LB[1:], parts, hidden_1BD[-1])

    def _normalise(self, states: Sequence[State]) -> None:
        """Keep ln Z(context) with the very states it belongs to, which copies of them then have, too."""
        by_source: dict[States, list[int]] = {}
        for source, place in dict.fromkeys(states):
            by_source.setdefault(source, []).append(place)
        missing = []
        for source, places in by_source.items():
            known_B = self.network.numpy(source.log_normalisers)
            missing += [State(source, place) for place in places if np.isnan(known_B[place])]
        if missing:
            found_B = self.network.log_normaliser(gather(missing).hidden_BD)
            for number, state in enumerate(missing):
                self.network.put(state.states.log_normalisers, np.array([state.place]), found_B[number])

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
        self.network.check_ids(given)
        return given
