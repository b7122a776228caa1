"""Any number of texts of any length, side by side in rows: each row reads one text, a chunk of words at a time.

Texts of like length go together, and begin together. Where some end, the chunk ends, and the next has fewer rows.

Legend: S texts, T time steps of a chunk, B rows, N words of all texts, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bnce.corpus.vocabulary import END
from bnce.engine.network import Array, Ints, Network, Query, Values
from bnce.engine.prefix_tree import score_tree
from bnce.engine.states import State, Texts, before_text, gather

# A tree goes word by word: a long text that is alone there takes twenty times as long as in one pass, and few texts
# have little in common, unless they are hypotheses of one utterance.
MAX_TREE_WORDS, MAX_SHARED_WORDS = 64, 512
MIN_TREE_TEXTS = 16


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
    given = Texts.of(network, texts, after)
    found = Values.room(int(given.length_S.sum()), query)
    is_short_S = given.length_S <= (MAX_SHARED_WORDS if share else MAX_TREE_WORDS)
    in_tree_S = is_short_S & (network.prefers_tree and (share or is_short_S.sum() >= MIN_TREE_TEXTS))
    if in_tree_S.any():
        score_tree(network, given, np.flatnonzero(in_tree_S), query, found)
    _Rows(network, given, query, found).read(np.flatnonzero(~in_tree_S))
    return found


def score_to_end(
    network: Network, texts: Sequence[Ints], query: Query | None, after: Sequence[State] | None = None
) -> tuple[Values, list[State]]:
    """Score every word of texts, and give the state after each; without a query they are only read."""
    given = Texts.of(network, texts, after)
    found = Values.room(int(given.length_S.sum()), query or Query())
    ends = dict(enumerate(after or []))  # of texts without words, which have been nowhere else
    _Rows(network, given, query, found, ends).read(np.arange(len(texts)))
    return found, [ends[number] for number in range(len(texts))]


class _Rows:
    """Texts on their way through a network: what is found goes to its place, and if kept, states go to `ends`."""

    def __init__(
        self, network: Network, texts: Texts, query: Query | None, found: Values, ends: dict[int, State] | None = None
    ) -> None:
        self.network, self.texts, self.query, self.found, self.ends = network, texts, query, found, ends

    def read(self, own_S: Ints) -> None:
        """Read some of the texts: the longest first, since of neighbours of like length little is padding."""
        own_S = own_S[np.argsort(-self.texts.length_S[own_S], kind="stable")]
        for first in range(0, len(own_S), self.network.max_rows):
            self._read_batch(own_S[first : first + self.network.max_rows])

    def _read_batch(self, own_B: Ints) -> None:
        """Read texts that fit side by side."""
        network, word_N, begin_B = self.network, self.texts.word_N, self.texts.begin_S[own_B]
        # Of what is read: the last word only for the state after it.
        end_B = self.texts.length_S[own_B] - (self.ends is None)
        if self.texts.after is None:
            place, states = -1, before_text(network, len(own_B))  # of the word that comes next; at -1 there is `</s>`
        else:
            place, states = 0, gather([self.texts.after[number] for number in own_B])
            self._answer(own_B, 0, states.hidden_BD[None])
        while B := int(np.count_nonzero(end_B > place)):
            if len(states) > B:
                states = states.select(np.arange(B))
            left_B = end_B[:B] - place
            # A state is that of a text only if a chunk ends there, too.
            fewest = network.min_steps if self.ends is None else 1
            T = min(left_B[0], max(left_B[-1], fewest), max(1, network.max_positions // B))
            position_TB = begin_B[:B] + place + np.arange(T)[:, None]
            word_TB = word_N[np.minimum(position_TB, len(word_N) - 1)]  # those beyond the end of a text are for nothing
            if place < 0:
                word_TB[0] = END
            hidden_TBD, states = states.read(word_TB)
            place += T
            self._answer(own_B[:B], place - T + 1, hidden_TBD)
            if self.ends is not None:
                ended = np.flatnonzero(end_B[:B] == place).tolist()
                self.ends.update((int(own_B[row]), State(states, row)) for row in ended)

    def _answer(self, own_B: Ints, first: int, hidden_TBD: Array) -> None:
        """Answer for the words of texts from the `first` on, each after its row of the hidden layer."""
        if self.query is None:
            return
        place_T1 = first + np.arange(len(hidden_TBD))[:, None]
        row_N = np.flatnonzero(place_T1 < self.texts.length_S[own_B])
        position_N = (self.texts.begin_S[own_B] + place_T1).ravel()[row_N]
        hidden_ND = self.network.take(hidden_TBD.reshape(len(place_T1) * len(own_B), -1), row_N)
        self.found.put(position_N, self.network.answer(hidden_ND, self.texts.word_N[position_N], self.query))
