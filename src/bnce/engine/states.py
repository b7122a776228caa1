"""Where a network stands in texts: histories side by side, one of them alone, and texts that begin after some.

Legend: T time steps, B histories, C context words of an n-gram body, L = C + T, S texts, N their words, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bnce.corpus.vocabulary import END
from bnce.engine.network import Array, Ints, Network, NetworkState


@dataclass(eq=False)
class States:
    """B histories side by side: what the network needs to go on from each, and the hidden layer it has come to."""

    network: Network
    context_CB: Ints  # the last words that were read
    parts: NetworkState
    hidden_BD: Array

    def __len__(self) -> int:
        return len(self.hidden_BD)

    def select(self, place_B: Ints) -> States:
        """Take some of the states, in any order, also repeatedly."""
        take = self.network.take
        parts = tuple(take(part, place_B, 1) for part in self.parts)
        return States(self.network, self.context_CB[:, place_B], parts, take(self.hidden_BD, place_B))

    def read(self, word_TB: Ints) -> tuple[Array, States]:
        """Go on by some words each: the hidden layer (T, B, D) after every word, and the states after the last."""
        ids_LB = np.concatenate([self.context_CB, word_TB])
        hidden_TBD, parts = self.network.forward(ids_LB, self.parts)
        return hidden_TBD, States(self.network, ids_LB[len(word_TB) :], parts, hidden_TBD[-1])


class State(NamedTuple):
    """One history: a place among states that were computed together. It is never changed."""

    states: States
    place: int


def before_text(network: Network, num_rows: int = 1) -> States:
    """Give the states before texts, in which nothing was read; a text begins with `</s>`, which comes next."""
    context_CB = np.full((network.num_context, num_rows), END, dtype=np.int64)
    hidden_BD = network.array(np.zeros((num_rows, network.hidden_size), dtype=np.float32))
    return States(network, context_CB, network.initial_state(num_rows), hidden_BD)


def start_of_text(network: Network) -> State:
    """Give the state after the `</s>` with which a text begins."""
    _, states = before_text(network).read(np.array([[END]]))
    return State(states, 0)


def gather(states: Sequence[State]) -> States:
    """Lay states side by side, in their order."""
    places: dict[States, list[int]] = {}
    for order, state in enumerate(states):
        places.setdefault(state.states, []).append(order)
    parts = []
    for source, orders in places.items():
        chosen = [states[order].place for order in orders]
        parts.append(source if chosen == list(range(len(source))) else source.select(np.array(chosen)))
    if len(parts) == 1:
        return parts[0]
    network = parts[0].network
    joined = States(
        network,
        np.concatenate([part.context_CB for part in parts], axis=1),
        tuple(network.concatenate(own, 1) for own in zip(*(part.parts for part in parts), strict=True)),
        network.concatenate([part.hidden_BD for part in parts]),
    )
    return joined.select(np.argsort([order for orders in places.values() for order in orders]))


class Texts(NamedTuple):
    """Texts to read, one behind the other: each from its start, or all after states of their own.

    `</s>` is a word like any other: give it where it is to be scored.
    """

    word_N: Ints  # and one more, so that there is a word behind every text
    begin_S: Ints
    length_S: Ints
    after: Sequence[State] | None

    @classmethod
    def of(cls, network: Network, texts: Sequence[Ints], after: Sequence[State] | None) -> Texts:
        """Lay texts one behind the other; ids that are none of the network's are refused."""
        length_S = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        word_N = np.concatenate([*texts, np.array([END], dtype=np.int64)])
        network.check_ids(word_N)
        return cls(word_N, np.cumsum(length_S) - length_S, length_S, after)
