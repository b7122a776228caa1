"""Texts that begin alike, as hypotheses of one utterance do: every distinct beginning is read once.

The texts form a tree. Its nodes of one depth go through the network together, one step for each depth, and what is
found at a node is handed to all texts through it.

Legend: S texts, A those of them that reach a depth, B distinct beginnings of one length, N words of all texts, P rows
of the hidden layer, R states before texts, W different words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bnce.engine.network import Array, Ints, Network, Query, Values
from bnce.engine.states import Texts, gather, start_of_text

# Texts in one tree: fewer share less and leave the network's steps small; the gates of more do not stay in the cache of
# a CPU, and get new memory in every step.
TREE_TEXTS = 2048
# Rows of the hidden layer that wait for each other, because all of the output layer may have to be read for them.
MIN_ROWS = 512


class Level(NamedTuple):
    """The distinct beginnings of one length: the parent of each among the nodes kept before, and its last word."""

    parent_B: Ints
    word_B: Ints
    kept_B: Ints  # those that some text goes on from
    position_A: Ints  # where in the words of all texts a beginning ends
    node_A: Ints  # and which beginning that is


def score_tree(network: Network, texts: Texts, own_S: Ints, query: Query, found: Values) -> None:
    """Score every word of some of the texts, and write what is found to its place."""
    # The words that are entered, and where each word of all texts is among them.
    position_N = np.flatnonzero(np.repeat(np.isin(np.arange(len(texts.length_S)), own_S), texts.length_S))
    entered_N = np.zeros_like(texts.word_N)
    word_W, entered_N[position_N] = np.unique(texts.word_N[position_N], return_inverse=True)
    entered = network.enter(word_W)
    # Texts after the same state that begin with the same word are neighbours.
    after = [start_of_text(network)] * len(own_S) if texts.after is None else [texts.after[number] for number in own_S]
    roots = {state: place for place, state in enumerate(dict.fromkeys(after))}
    before, root_S = list(roots), np.array([roots[state] for state in after])
    order_S = np.lexsort((texts.word_N[texts.begin_S[own_S]], root_S))
    at_once = network.rows_at_once(TREE_TEXTS)
    for first in range(0, len(own_S), at_once):
        group_S = order_S[first : first + at_once]
        place_R, own_root_S = np.unique(root_S[group_S], return_inverse=True)
        states = gather([before[place] for place in place_R])
        hidden_PD, state = states.hidden_BD, states.parts
        waiting: list[tuple[Level, Array]] = []
        group = own_S[group_S]
        for level in levels(entered_N, texts.begin_S[group], texts.length_S[group], own_root_S):
            waiting.append((level, hidden_PD))
            is_last = not len(level.kept_B)
            if is_last or sum(len(rows_PD) for _, rows_PD in waiting) >= MIN_ROWS:
                _answer(network, waiting, texts.word_N, query, found)
                waiting = []
            if not is_last:
                word_B, parent_B = level.word_B[level.kept_B], level.parent_B[level.kept_B]
                hidden_PD, state = network.branch(entered, word_B, state, parent_B)


def _answer(network: Network, group: Sequence[tuple[Level, Array]], word_N: Ints, query: Query, found: Values) -> None:
    """Compute what is asked at some levels, and write it to the places of all texts through their nodes."""
    first_row, first_node = 0, 0
    parents, nodes = [], []
    for level, hidden_PD in group:
        parents.append(level.parent_B + first_row)
        nodes.append(level.node_A + first_node)
        first_row, first_node = first_row + len(hidden_PD), first_node + len(level.word_B)
    hidden_PD = network.concatenate([hidden for _, hidden in group])
    position_N, node_N = np.concatenate([level.position_A for level, _ in group]), np.concatenate(nodes)
    word_B = np.empty(first_node, dtype=np.int64)
    word_B[node_N] = word_N[position_N]
    values = network.answer(hidden_PD, word_B, query, np.concatenate(parents))
    found.put(position_N, values.select(node_N))


def levels(word_N: Ints, begin_S: Ints, length_S: Ints, root_S: Ints) -> Iterator[Level]:
    """Walk the trees of texts from their roots, a depth at a time."""
    # The longest first: those that reach a depth are the first ones.
    order_S = np.argsort(-length_S, kind="stable")
    begin_S, length_S, node_S = begin_S[order_S], length_S[order_S], root_S[order_S]
    num_words = int(word_N.max(initial=0)) + 1
    num_active = int(np.count_nonzero(length_S))
    for depth in range(int(length_S.max(initial=0))):
        position_A = begin_S[:num_active] + depth
        key_A = node_S[:num_active] * num_words + word_N[position_A]
        key_B, node_A = np.unique(key_A, return_inverse=True)
        num_active = int(np.searchsorted(-length_S, -(depth + 1), side="left"))
        is_kept_B = np.zeros(len(key_B), dtype=bool)
        is_kept_B[node_A[:num_active]] = True
        kept_B, node_S = np.flatnonzero(is_kept_B), (np.cumsum(is_kept_B) - 1)[node_A[:num_active]]
        yield Level(key_B // num_words, key_B % num_words, kept_B, position_A, node_A)
