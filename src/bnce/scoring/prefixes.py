"""Many sequences that begin alike, as hypotheses of one utterance do: every distinct prefix is computed once.

The sequences form a tree. Its nodes of one depth go through the network together, one step for each depth, and each
node's probability is handed to all sequences through it. Logarithms are natural.

Legend: S sequences, A those of them that reach a depth, B distinct prefixes of one length, N words of all sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bnce.scoring.scorer import Scorer, State, check_ids, gather, num_side_by_side

# Sequences in one tree: more keep wider states in memory, fewer share less and leave the network's steps small.
TREE_SEQUENCES = 4096

Ids = Sequence[int] | NDArray[np.int64]
IntArray = NDArray[np.int64]


class _Level(NamedTuple):
    """The distinct prefixes of one length: the parent of each among the nodes kept before, and its last word."""

    parent_B: IntArray
    word_B: IntArray
    kept_B: IntArray  # those that some sequence goes on from
    position_A: IntArray  # where in the words of all sequences a prefix ends
    node_A: IntArray  # and which prefix that is


def score_prefixes(
    scorer: Scorer, sequences: Sequence[Ids], normalised: bool = False, after: Sequence[State] | None = None
) -> list[NDArray[np.float64]]:
    """Compute ln p of every word of every sequence, from the start of a text or each `after` a state of its own.

    `</s>` is a word like any other: give it where it is to be scored. Sequences of one list should be neighbours.
    """
    scores: list[NDArray[np.float64]] = []
    at_once = num_side_by_side(scorer.model, TREE_SEQUENCES)
    for begin in range(0, len(sequences), at_once):
        part = slice(begin, begin + at_once)
        scores += _score_tree(scorer, sequences[part], normalised, None if after is None else after[part])
    return scores


def num_prefixes(sequences: Sequence[Ids]) -> int:
    """Count the distinct prefixes: so many words are scored, where without sharing every word of every sequence is."""
    word_N, length_S = _flatten(sequences)
    return sum(len(level.word_B) for level in _levels(word_N, length_S, np.zeros_like(length_S)))


def _score_tree(
    scorer: Scorer, sequences: Sequence[Ids], normalised: bool, after: Sequence[State] | None
) -> list[NDArray[np.float64]]:
    word_N, length_S = _flatten(sequences)
    check_ids(scorer.model, int(word_N.min(initial=0)), int(word_N.max(initial=0)))
    log_prob_N = np.empty(len(word_N))
    if after is None:
        states, root_S = scorer.start_states(), np.zeros_like(length_S)
    else:
        # Sequences after the same state are branches of one tree; others stand side by side.
        roots = {state: root for root, state in enumerate(dict.fromkeys(after))}
        states, root_S = gather(list(roots)), np.array([roots[state] for state in after], dtype=np.int64)
    for level in _levels(word_N, length_S, root_S):
        parent_B, word_B, kept_B = (torch.from_numpy(part).to(scorer.device) for part in level[:3])
        log_prob_B = scorer.score_words(states, parent_B, word_B, normalised).double().cpu().numpy()
        log_prob_N[level.position_A] = log_prob_B[level.node_A]
        if len(kept_B):
            states = scorer.branch_states(states, parent_B[kept_B], word_B[kept_B])
    return np.split(log_prob_N, np.cumsum(length_S)[:-1]) if len(length_S) else []


def _flatten(sequences: Sequence[Ids]) -> tuple[IntArray, IntArray]:
    length_S = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
    parts = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64), length_S


def _levels(word_N: IntArray, length_S: IntArray, root_S: IntArray) -> Iterator[_Level]:
    """Walk the trees of sequences from their roots, a depth at a time."""
    # The longest first: those that reach a depth are the first ones.
    order_S = np.argsort(-length_S, kind="stable")
    begin_S = (np.cumsum(length_S) - length_S)[order_S]
    sorted_length_S = length_S[order_S]
    num_words = int(word_N.max(initial=0)) + 1
    node_S = root_S[order_S]
    num_active = int(np.count_nonzero(length_S))
    for depth in range(int(length_S.max(initial=0))):
        position_A = begin_S[:num_active] + depth
        key_A = node_S[:num_active] * num_words + word_N[position_A]
        key_B, node_A = np.unique(key_A, return_inverse=True)
        num_active = int(np.searchsorted(-sorted_length_S, -(depth + 1), side="left"))
        kept_B, node_S = np.unique(node_A[:num_active], return_inverse=True)
        yield _Level(key_B // num_words, key_B % num_words, kept_B, position_A, node_A)
