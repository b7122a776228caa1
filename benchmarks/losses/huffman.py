"""Huffman's tree over the words: the path of choices to each, short for frequent words.

Inner nodes are numbered from the root on, the most frequent first, so a node's number is above its parent's. A choice
is written as one number, 2·node + bit.

Legend: V words, R = V − 1 inner nodes, L choices of the longest path, F choices of all paths together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tree:
    """A binary tree whose leaves are words."""

    choice_V: np.ndarray  # the last choice on the way to a word
    choice_R: np.ndarray  # the last choice on the way to an inner node; −1: the root
    share_R: np.ndarray  # of the words below an inner node
    share_R1: np.ndarray  # of those below its bit 1

    def paths(self) -> tuple[np.ndarray, np.ndarray]:
        """Give the choices of all words end to end (F,), from the root on, and how many each word has (V,)."""
        length_V = np.zeros(len(self.choice_V), dtype=np.int64)
        levels = []
        choice_N, word_N = self.choice_V, np.arange(len(self.choice_V))
        while len(word_N):
            levels.append((word_N, choice_N))
            length_V[word_N] += 1
            choice_N = self.choice_R[choice_N >> 1]
            word_N, choice_N = word_N[choice_N >= 0], choice_N[choice_N >= 0]
        end_V = np.cumsum(length_V)
        path_F = np.empty(int(end_V[-1]), dtype=np.int32)
        for height, (word_N, choice_N) in enumerate(levels, start=1):
            path_F[end_V[word_N] - height] = choice_N
        return path_F, length_V


def build_tree(probs_V: np.ndarray) -> Tree:
    """Build Huffman's tree, many nodes at a time.

    Of the lightest two nodes the sum is at least as heavy as either. So all nodes up to this sum are paired before any
    pair is looked at again, in the order of their weights.
    """
    V = len(probs_V)
    order_V = np.argsort(probs_V, kind="stable")
    weight_n, node_n = probs_V[order_V], order_V  # words are 0 to V − 1, pairs from V on in the order they are made
    parent = np.full(2 * V - 1, -1, dtype=np.int64)
    bit = np.zeros(2 * V - 1, dtype=np.int64)
    share_R, share_R1 = np.empty(V - 1), np.empty(V - 1)
    made = 0
    while len(node_n) > 1:
        num_paired = int(np.searchsorted(weight_n, weight_n[0] + weight_n[1], side="right"))
        num_paired = max(2, num_paired - num_paired % 2)
        light, heavy = node_n[0:num_paired:2], node_n[1:num_paired:2]
        sums = weight_n[0:num_paired:2] + weight_n[1:num_paired:2]
        pairs = V + made + np.arange(len(sums))
        parent[light] = parent[heavy] = pairs
        bit[heavy] = 1
        share_R[made : made + len(sums)] = sums
        share_R1[made : made + len(sums)] = weight_n[1:num_paired:2]
        made += len(sums)
        weight_n, node_n = np.concatenate([weight_n[num_paired:], sums]), np.concatenate([node_n[num_paired:], pairs])
        order_n = np.argsort(weight_n, kind="stable")
        weight_n, node_n = weight_n[order_n], node_n[order_n]
    row = 2 * V - 2 - parent  # the last pair is the root
    choice = np.where(parent >= 0, 2 * row + bit, -1)
    return Tree(choice[:V], choice[V:][::-1].copy(), share_R[::-1].copy(), share_R1[::-1].copy())
