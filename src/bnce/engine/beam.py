"""A network as a beam search sees it: states that advance by a word, and ln p of the next words.

A state stands for a whole history; it is never changed, so hypotheses may share one, and any number of them go through
the network side by side.

Legend: B states side by side, K words per state, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bnce.engine.network import Array, Ints, Mode, Network
from bnce.engine.states import State, gather, start_of_text
from bnce.errors import UserError

Words = Any  # a tensor, an array or lists of ids


class Scorer:
    """Scores words after states; words are ids, and logarithms are natural. `model.scorer()` makes one.

    Results are NumPy arrays on a CPU and tensors on a GPU.
    """

    def __init__(self, network: Network) -> None:
        self.network = network

    def start(self) -> State:
        """Give the state at the start of a sentence: after `</s>`, with nothing before it."""
        return self._start

    @functools.cached_property
    def _start(self) -> State:
        return start_of_text(self.network)

    def advance(self, states: Sequence[State], words: Words) -> list[State]:
        """Move each state on by one word, all of them in one pass through the network."""
        if not states:
            return []
        _, moved = gather(states).read(self._words(states, words)[None])
        return [State(moved, place) for place in range(len(states))]

    def score(self, states: Sequence[State], words: Words, mode: Mode | None = None) -> Array:
        """Compute ln p of words after states: one each (B,) or several each (B, K).

        Unnormalised reads only the rows of these words, and is the default where the model has a constant Z. Normalised
        passes over the vocabulary, once for each different state.
        """
        network, mode = self.network, self.network.choose_mode(mode)
        if not states:
            return network.array(np.zeros(0, dtype=np.float32))
        words_B = self._words(states, words, several=True)
        places = {state: place for place, state in enumerate(dict.fromkeys(states))}
        different, place_B = gather(list(places)), np.array([places[state] for state in states])
        hidden_BD = network.take(different.hidden_BD, place_B)
        score_BK = network.scores(hidden_BD, words_B.reshape(len(states), -1))
        constant: Any = network.log_z
        if mode == "normalised":
            constant = network.take(network.log_normaliser(different.hidden_BD), place_B)[:, None]
        return (score_BK - constant).reshape(words_B.shape)

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
