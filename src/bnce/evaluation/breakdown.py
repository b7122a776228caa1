"""Perplexity, and where a text is hard: by frequency of the word and by place in the sentence; the worst sentences.

Everything is a few passes over arrays with one number per token, in the order of the text: eight million tokens take
seconds. Losses are natural logarithms, −ln p, with the softmax.

Legend: N tokens of the text, V vocabulary, G groups of tokens, S sentences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import END, UNK
from bnce.text.normalise import UNKNOWN_WORD

# The last rank of every group but the last: 1 is the most frequent word of the training text.
RANK_BOUNDS = (10, 100, 1_000, 10_000, 100_000)
# Likewise for places in the sentence: 1 is its first word.
PLACE_BOUNDS = (*range(1, 21), 40)
NUM_WORST = 10
MIN_WORDS = 5  # of a worst sentence: a title of two names says little
MAX_SHOWN_WORDS = 100  # of a worst sentence: a text without sentence ends is one sentence

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class WordCounts:
    """What must be known of the words: how they are spelt, and how often each is a target of the training text."""

    words: Sequence[str]
    target_counts_V: Ints


@dataclass(frozen=True)
class Group:
    """Some of the tokens: their name, such as "11-100", how many they are, and their perplexities."""

    name: str
    num_tokens: int
    ppl_n: float | None  # with the constant Z; None for a model that was trained with the softmax
    ppl_f: float | None  # with the full softmax


@dataclass(frozen=True)
class Sentence:
    """A sentence with every word's loss; of a long one the first words."""

    first_token: int  # its place in the text, from 0
    num_tokens: int  # with `</s>`, where it has one
    mean_loss_nats: float  # over all of them
    words: list[str]
    losses_nats: list[float]


@dataclass(frozen=True)
class Detail:
    """Where a text is hard; groups in which no token falls are left out."""

    by_frequency: list[Group]
    by_position: list[Group]
    worst_sentences: list[Sentence]


def perplexity(log_prob: float, num_tokens: int, *, log10: bool = False) -> float | None:
    """Compute exp(−log_prob / num_tokens), or with `log10` a power of ten; None where there are no tokens."""
    if num_tokens <= 0:
        return None
    mean = -float(log_prob) / int(num_tokens)
    try:
        return float(10.0**mean) if log10 else math.exp(mean)
    except OverflowError:
        return math.inf


def without_detail(record: Mapping[str, Any]) -> dict[str, Any]:
    """Give the figures of an evaluation that fit on a screen: what reports draw is thousands of numbers and words."""
    return {key: value for key, value in record.items() if key not in ("log_z_histogram", "detail")}


def find_detail(target_N: Ints, log_prob_f_N: Floats, log_prob_n_N: Floats | None, known: WordCounts) -> Detail:
    """Sum up what every token of a text got: `log_prob_f_N` with the softmax, `log_prob_n_N` with the constant Z."""
    rank_group_N = _rank_groups(known.target_counts_V)[target_N]
    place_group_N = np.searchsorted(PLACE_BOUNDS, places(target_N))
    return Detail(
        by_frequency=_groups(rank_group_N, [*_names(RANK_BOUNDS), UNKNOWN_WORD], log_prob_f_N, log_prob_n_N),
        by_position=_groups(place_group_N, _names(PLACE_BOUNDS), log_prob_f_N, log_prob_n_N),
        worst_sentences=worst_sentences(target_N, -log_prob_f_N, known.words),
    )


def places(target_N: Ints) -> Ints:
    """Number the tokens of every sentence from 1; `</s>` is the last of its sentence."""
    index_N = np.arange(len(target_N))
    starts_N = np.ones(len(target_N), dtype=bool)
    starts_N[1:] = target_N[:-1] == END
    return index_N - np.maximum.accumulate(np.where(starts_N, index_N, 0)) + 1


def worst_sentences(target_N: Ints, loss_N: Floats, words: Sequence[str]) -> list[Sentence]:
    """Give the sentences of `MIN_WORDS` words or more with the highest mean loss, the worst first."""
    start_S = np.flatnonzero(places(target_N) == 1)
    length_S = np.diff(start_S, append=len(target_N))
    mean_S = np.add.reduceat(loss_N, start_S) / length_S
    num_words_S = length_S - (target_N[start_S + length_S - 1] == END)
    long_enough = np.flatnonzero(num_words_S >= MIN_WORDS)
    worst = []
    for number in long_enough[np.argsort(-mean_S[long_enough], kind="stable")[:NUM_WORST]]:
        start, length = int(start_S[number]), int(length_S[number])
        shown = slice(start, start + min(length, MAX_SHOWN_WORDS))
        spelt = [words[word] for word in target_N[shown]]
        # Four digits are more than anyone reads, and keep evaluation.json short.
        losses = [round(float(loss), 4) for loss in loss_N[shown]]
        worst.append(Sentence(start, length, float(mean_S[number]), spelt, losses))
    return worst


def _rank_groups(counts_V: Ints) -> Ints:
    """Say of every word in which group of ranks it is; the unknown word is a group of its own, the last."""
    counts_V = counts_V.astype(np.int64)
    counts_V[UNK] = -1  # has no rank: the words after it move up
    rank_V = np.empty(len(counts_V), dtype=np.int64)
    rank_V[np.argsort(-counts_V, kind="stable")] = np.arange(1, len(counts_V) + 1)
    group_V = np.searchsorted(RANK_BOUNDS, rank_V)
    group_V[UNK] = len(RANK_BOUNDS) + 1
    return group_V


def _names(bounds: Sequence[int]) -> list[str]:
    firsts = [1, *(bound + 1 for bound in bounds[:-1])]
    names = [str(last) if first == last else f"{first}-{last}" for first, last in zip(firsts, bounds, strict=True)]
    return [*names, f"{bounds[-1] + 1}+"]


def _groups(group_N: Ints, names: Sequence[str], log_prob_f_N: Floats, log_prob_n_N: Floats | None) -> list[Group]:
    num_tokens_G = np.bincount(group_N, minlength=len(names))
    total_f_G = np.bincount(group_N, weights=log_prob_f_N, minlength=len(names))
    total_n_G = None if log_prob_n_N is None else np.bincount(group_N, weights=log_prob_n_N, minlength=len(names))
    return [
        Group(
            name=name,
            num_tokens=int(num_tokens_G[number]),
            ppl_n=None if total_n_G is None else perplexity(total_n_G[number], num_tokens_G[number]),
            ppl_f=perplexity(total_f_G[number], num_tokens_G[number]),
        )
        for number, name in enumerate(names)
        if num_tokens_G[number]
    ]
