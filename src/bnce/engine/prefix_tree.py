"""Texts that begin alike, as hypotheses of one utterance do: every distinct beginning is read once.

The texts form a tree. Its nodes of one depth go through the network together, one step for each depth, and what is
found at a node is handed to all texts through it.

Legend: S texts, A those of them that reach a depth, B distinct beginnings of one length, N words of all texts, P rows
of the hidden layer, W different words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bnce.corpus.vocabulary import END
from bnce.engine.network import Array, Floats, Ints, Network, NetworkState, Query, State, Values, before_text, gather

# Texts in one tree: fewer share less and leave the network's steps small; the gates of more do not stay in the cache of
# a CPU, and get new memory in every step.
TREE_TEXTS = 2048
# Rows of the hidden layer that wait for each other where all of the output layer is read: it is read once for all.
MIN_ROWS = 512


class Level(NamedTuple):
    """The distinct beginnings of one length: the parent of each among the nodes kept before, and its last word."""

    parent_B: Ints
    word_B: Ints
    kept_B: Ints  # those that some text goes on from
    position_A: Ints  # where in the words of all texts a beginning ends
    node_A: Ints  # and which beginning that is


def score_tree(network: Network, texts: Sequence[Ints], query: Query, after: Sequence[State] | None = None) -> Values:
    """Score every word of texts, from their starts or each `after` a state of its own: one text after another.

    `</s>` is a word like any other: give it where it is to be scored.
    """
    length_S = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    begin_S = np.cumsum(length_S) - length_S
    word_N = np.concatenate([np.zeros(0, dtype=np.int64), *texts])
    network.check_ids(word_N)
    word_W, entered_N = np.unique(word_N, return_inverse=True)
    entered = network.enter(word_W)
    # Those that begin with the same word go into the same tree; those with states of their own stay neighbours.
    order_S = np.arange(len(texts))
    if after is None:
        order_S = np.argsort(np.append(word_N, 0)[begin_S], kind="stable")
        hidden_BD, state = network.forward(np.array([[END]]), before_text(network).parts)
        root: tuple[Array, NetworkState] = hidden_BD[-1], state
    found: list[Floats | None] = [
        np.zeros(len(word_N)) if wanted else None for wanted in (True, query.log_z, query.entropy)
    ]
    at_once = network.rows_at_once(TREE_TEXTS)
    for first in range(0, len(texts), at_once):
        own_S = order_S[first : first + at_once]
        root_S = np.zeros_like(own_S)
        if after is not None:
            # Texts after the same state are branches of one tree; others stand side by side.
            roots = {state: place for place, state in enumerate(dict.fromkeys(after[number] for number in own_S))}
            states = gather(list(roots))
            root, root_S = (states.hidden_BD, states.parts), np.array([roots[after[number]] for number in own_S])
        walk = _walk(network, entered, root, levels(entered_N, begin_S[own_S], length_S[own_S], root_S))
        for level_group in _grouped(walk, MIN_ROWS if query.log_z or query.entropy else 1):
            _answer(network, level_group, word_W, query, found)
    score_N, log_z_N, entropy_N = found
    assert score_N is not None
    return Values(score_N, log_z_N, entropy_N)


def _walk(
    network: Network, entered: Array, root: tuple[Array, NetworkState], levels: Iterator[Level]
) -> Iterator[tuple[Level, Array]]:
    """Give the beginnings of each length, and the rows of the hidden layer that they continue."""
    hidden_PD, state = root
    for level in levels:
        yield level, hidden_PD
        if len(level.kept_B):
            parent_B, word_B = level.parent_B[level.kept_B], level.word_B[level.kept_B]
            hidden_PD, state = network.branch(entered, word_B, state, parent_B)


def _grouped(walk: Iterator[tuple[Level, Array]], min_rows: int) -> Iterator[list[tuple[Level, Array]]]:
    """Let levels wait until they have so many rows together."""
    waiting: list[tuple[Level, Array]] = []
    for one in walk:
        waiting.append(one)
        if sum(len(hidden_PD) for _, hidden_PD in waiting) >= min_rows:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _answer(
    network: Network,
    group: Sequence[tuple[Level, Array]],
    word_W: Ints,
    query: Query,
    found: Sequence[Floats | None],
) -> None:
    """Compute what is asked at some levels, and write it to the places of all texts through their nodes."""
    first_row, first_node = 0, 0
    parents, nodes = [], []
    for level, hidden_PD in group:
        parents.append(level.parent_B + first_row)
        nodes.append(level.node_A + first_node)
        first_row, first_node = first_row + len(hidden_PD), first_node + len(level.word_B)
    hidden_PD = group[0][1] if len(group) == 1 else network.concatenate([hidden for _, hidden in group])
    word_B = word_W[np.concatenate([level.word_B for level, _ in group])]
    values = network.answer(hidden_PD, word_B, query, np.concatenate(parents))
    position_N, node_N = np.concatenate([level.position_A for level, _ in group]), np.concatenate(nodes)
    for whole_N, part_B in zip(found, values, strict=False):
        if whole_N is not None and part_B is not None:
            whole_N[position_N] = part_B[node_N]


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
