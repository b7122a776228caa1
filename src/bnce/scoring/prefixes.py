"""Many sequences that begin alike, as hypotheses of one utterance do: every distinct prefix is computed once.

The sequences form a tree. Its nodes of one depth go through the network together, one step for each depth, and each
node's probability is handed to all sequences through it. Logarithms are natural.

Legend: S sequences, A those of them that reach a depth, B distinct prefixes of one length, N words of all sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.scoring.engine import Ints
from bnce.scoring.scorer import Entered, Scorer, State, States, gather

# Sequences in one tree: fewer share less and leave the network's steps small; the gates of more do not stay in the
# cache of a CPU, and get new memory in every step.
TREE_SEQUENCES = 2048

Ids = Sequence[int] | Ints


class Level(NamedTuple):
    """The distinct prefixes of one length: the parent of each among the nodes kept before, and its last word."""

    parent_B: Ints
    word_B: Ints
    kept_B: Ints  # those that some sequence goes on from
    position_A: Ints  # where in the words of all sequences a prefix ends
    node_A: Ints  # and which prefix that is


def score_prefixes(
    scorer: Scorer, sequences: Sequence[Ids], normalised: bool = False, after: Sequence[State] | None = None
) -> list[NDArray[np.float64]]:
    """Compute ln p of every word of every sequence, from the start of a text or each `after` a state of its own.

    `</s>` is a word like any other: give it where it is to be scored. Sequences of one list should be neighbours.
    """
    scores: list[NDArray[np.float64]] = []
    at_once = scorer.engine.num_side_by_side(TREE_SEQUENCES)
    for begin in range(0, len(sequences), at_once):
        word_N, length_S = flatten(sequences[begin : begin + at_once])
        log_prob_N = np.empty(len(word_N))
        own = None if after is None else after[begin : begin + at_once]
        for level, states in walk(scorer, word_N, length_S, own):
            log_prob_B = scorer.score_words(states, level.parent_B, level.word_B, normalised)
            log_prob_N[level.position_A] = scorer.engine.numpy(log_prob_B)[level.node_A]
        scores += split(log_prob_N, length_S)
    return scores


def walk(
    scorer: Scorer,
    word_N: Ints,
    length_S: Ints,
    after: Sequence[State] | None = None,
    entered: Entered | None = None,
) -> Iterator[tuple[Level, States]]:
    """Give the prefixes of each length, and the states that they continue.

    `entered` has what was computed of these words, among others.
    """
    scorer.engine.check_ids(int(word_N.min(initial=0)), int(word_N.max(initial=0)))
    entered = entered or scorer.enter(word_N)
    if after is None:
        states, root_S = scorer.start_states(), np.zeros_like(length_S)
    else:
        # Sequences after the same state are branches of one tree; others stand side by side.
        roots = {state: root for root, state in enumerate(dict.fromkeys(after))}
        states, root_S = gather(list(roots)), np.array([roots[state] for state in after], dtype=np.int64)
    for level in levels(word_N, length_S, root_S):
        yield level, states
        if len(level.kept_B):
            states = scorer.branch_states(states, level.parent_B[level.kept_B], level.word_B[level.kept_B], entered)


def flatten(sequences: Sequence[Ids]) -> tuple[Ints, Ints]:
    """Give the words of all sequences one after the other, and how many words each has."""
    length_S = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
    parts = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64), length_S


def split(value_N: NDArray[Any], length_S: Ints) -> list[NDArray[Any]]:
    """Cut an array into parts of these lengths, as `flatten` joined them; `np.split` takes ten times as long."""
    ends = np.cumsum(length_S).tolist()
    return [value_N[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def levels(word_N: Ints, length_S: Ints, root_S: Ints) -> Iterator[Level]:
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
        is_kept_B = np.zeros(len(key_B), dtype=bool)
        is_kept_B[node_A[:num_active]] = True
        kept_B, node_S = np.flatnonzero(is_kept_B), (np.cumsum(is_kept_B) - 1)[node_A[:num_active]]
        yield Level(key_B // num_words, key_B % num_words, kept_B, position_A, node_A)
