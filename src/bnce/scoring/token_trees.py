"""Sequences that begin alike through a Transformer in one pass: a tree of words that attend to their ancestors.

Branching word by word copies the keys and values of every history at every step. A tree of some sequences is one text
here, in which a word's place is its depth. Trees of about the same size stand side by side. Logarithms are natural.

Legend: N nodes of a tree, prefixes that some sequence goes on from; G trees side by side, P words that are scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import END
from bnce.scoring.engine import Ints
from bnce.scoring.prefixes import Ids, flatten, levels, split
from bnce.scoring.scorer import Scorer, States

# Sequences of one tree, unless the next begins alike; longer ones would make attention a table of too many pairs.
MIN_SEQUENCES, MAX_SEQUENCES = 16, 128
LONGEST = 512


class Tree(NamedTuple):
    """A tree, and which words are scored after which of its nodes; the first node is the start of a text."""

    word_N: Ints
    depth_N: Ints
    is_seen_NN: NDArray[np.bool_]
    node_P: Ints
    word_P: Ints
    position: Ints  # of a word of all sequences: where in P its score is
    length_S: Ints


def score_trees(scorer: Scorer, sequences: Sequence[Ids], normalised: bool) -> list[NDArray[np.float64]]:
    """Compute ln p of every word of every sequence, from the start of a text."""
    trees = [grow(part) for part in cut(sequences)]
    order = sorted(range(len(trees)), key=lambda number: len(trees[number].word_N))
    found: dict[int, list[NDArray[np.float64]]] = {}
    for group in _groups(order, [len(tree.word_N) for tree in trees], scorer.engine.pass_nodes):
        for number, scores in zip(group, _score_group(scorer, [trees[one] for one in group], normalised), strict=True):
            found[number] = scores
    return [scores for number in range(len(trees)) for scores in found[number]]


def cut(sequences: Sequence[Ids]) -> Iterator[Sequence[Ids]]:
    """Cut sequences into those of one tree, between two that begin with different words."""
    begin = 0
    for end in range(1, len(sequences) + 1):
        if end < len(sequences) and end - begin < MAX_SEQUENCES:
            one, other = sequences[end - 1], sequences[end]
            if end - begin < MIN_SEQUENCES or (len(one) and len(other) and one[0] == other[0]):
                continue
        yield sequences[begin:end]
        begin = end


def grow(sequences: Sequence[Ids]) -> Tree:
    """Make the tree of some sequences."""
    word_N, length_S = flatten(sequences)
    words, depths, parents = [np.array([END])], [np.array([0])], [np.array([0])]
    nodes, scored = [], []
    position = np.empty(len(word_N), dtype=np.int64)
    kept, num_nodes, num_scored = np.array([0]), 1, 0
    for depth, level in enumerate(levels(word_N, length_S, np.zeros_like(length_S))):
        parent_B = kept[level.parent_B]
        position[level.position_A] = num_scored + level.node_A
        nodes.append(parent_B)
        scored.append(level.word_B)
        num_scored += len(parent_B)
        kept = np.arange(num_nodes, num_nodes + len(level.kept_B))
        words.append(level.word_B[level.kept_B])
        depths.append(np.full(len(kept), depth + 1))
        parents.append(parent_B[level.kept_B])
        num_nodes += len(kept)
    is_seen_NN = np.zeros((num_nodes, num_nodes), dtype=bool)
    # Parents stand before their children.
    for node, parent in enumerate(np.concatenate(parents).tolist()):
        is_seen_NN[node] = is_seen_NN[parent]
        is_seen_NN[node, node] = True
    none = np.zeros(0, dtype=np.int64)
    return Tree(
        np.concatenate(words),
        np.concatenate(depths),
        is_seen_NN,
        np.concatenate([none, *nodes]),
        np.concatenate([none, *scored]),
        position,
        length_S,
    )


def _groups(order: Sequence[int], sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    group: list[int] = []
    for number in order:
        if group and (len(group) + 1) * sizes[number] > most:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def _score_group(scorer: Scorer, trees: Sequence[Tree], normalised: bool) -> list[list[NDArray[np.float64]]]:
    num, size = len(trees), max(len(tree.word_N) for tree in trees)
    word_GN, depth_GN = np.full((num, size), END), np.zeros((num, size), dtype=np.int64)
    is_seen_GNN = np.tile(np.eye(size, dtype=bool), (num, 1, 1))  # empty places see themselves
    for place, tree in enumerate(trees):
        own = len(tree.word_N)
        word_GN[place, :own], depth_GN[place, :own] = tree.word_N, tree.depth_N
        is_seen_GNN[place, :own, :own] = tree.is_seen_NN
    word_P = np.concatenate([tree.word_P for tree in trees])
    engine = scorer.engine
    for words in (word_GN, word_P):
        engine.check_ids(int(words.min(initial=0)), int(words.max(initial=0)))
    hidden_RD = engine.run_trees(word_GN, depth_GN, is_seen_GNN)
    # Only nodes of trees, one tree's after the other's, so that no empty place is normalised.
    is_node_GN = np.arange(size) < np.array([[len(tree.word_N)] for tree in trees])
    hidden_MD = engine.take(hidden_RD, np.flatnonzero(is_node_GN))
    begins = np.cumsum([0, *(len(tree.word_N) for tree in trees)])
    node_P = np.concatenate([tree.node_P + begin for tree, begin in zip(trees, begins[:-1], strict=True)])
    states = States(engine, np.zeros((0, len(hidden_MD)), dtype=np.int64), (), hidden_MD)
    log_prob_P = engine.numpy(scorer.score_words(states, node_P, word_P, normalised)).astype(np.float64)
    ends = np.cumsum([len(tree.word_P) for tree in trees])
    found = []
    for tree, own_P in zip(trees, np.split(log_prob_P, ends[:-1]), strict=True):
        found.append(split(own_P[tree.position], tree.length_S))
    return found
