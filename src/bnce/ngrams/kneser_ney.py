"""N-gram models by interpolated modified Kneser-Ney smoothing, over the words of a vocabulary.

The discounts are those of Chen and Goodman (1998), Section 3. Counts of the highest order are those of the text; a
lower order counts in how many contexts a word was seen, except after `<s>`, before which nothing stands. `<unk>` is a
word like any other, so that a model knows exactly the words that a run with the same vocabulary knows.

An n-gram is one number, `key = context · W + word`, where `context` is the place of its first n − 1 words among the
n-grams of the order below. So keys fit into 64 bits for every order, and contexts come by division.

Legend: N distinct n-grams of one order, C those that are contexts of the next, T tokens of the text with `<s>`, W words
with `<s>` among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.meter import Progress
from bnce.corpus.spelling import find_discounts
from bnce.corpus.vocabulary import END
from bnce.errors import UserError

# What counting holds at most for each token, as measured on text whose n-grams of the highest order are nearly all new.
_BASE_BYTES_PER_TOKEN, _BYTES_PER_TOKEN_AND_ORDER = 60, 40

Ints = NDArray[Any]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Order:
    """The n-grams of one order: sorted keys, interpolated probabilities, and as contexts their back-off weights."""

    key_N: Ints
    prob_N: Floats
    backoff_N: Floats
    kept_N: Bools  # False for those that are pruned
    discounts: tuple[float, float, float]  # taken off counts of 1, of 2, and of 3 or more
    is_fallback: bool  # whether the text was too small to estimate the discounts

    @property
    def num_kept(self) -> int:
        """How many n-grams are not pruned."""
        return int(self.kept_N.sum())


@dataclass(frozen=True)
class _Counted:
    key_N: Ints
    suffix_N: Ints  # the place of the last n − 1 words among the n-grams of the order below
    text_count_N: Ints
    at_start_N: Bools  # whether `<s>` is the first word


def needed_bytes(num_tokens: int, order: int) -> int:
    """Say how much memory `estimate` needs at most."""
    return num_tokens * (_BASE_BYTES_PER_TOKEN + _BYTES_PER_TOKEN_AND_ORDER * order)


def estimate(
    ids: Ints, vocab_size: int, prune: Sequence[int], progress: Progress = lambda done, total: None
) -> list[Order]:
    """Estimate a model of sentences that end in `</s>`; `<s>` is the word number `vocab_size`.

    `prune` has a number for each order: n-grams which the text has that often or less are left out, and what they had
    goes to the shorter contexts. `progress` is told of orders done.
    """
    order = len(prune)
    base = vocab_size + 1
    counted = _count(ids, base, order, progress)
    prob_W = np.full(base, 1 / vocab_size)  # what unigrams back off to: every word alike
    prob_W[vocab_size] = 0
    orders: list[Order] = []
    for number, (one, max_pruned) in enumerate(zip(counted, prune, strict=True), 1):
        count_N = one.text_count_N
        if number < order:
            # How many different words stood before each; nothing stands before <s>.
            num_contexts_N = np.bincount(counted[number].suffix_N, minlength=len(one.key_N))
            count_N = np.where(one.at_start_N, count_N, num_contexts_N)
        # Of unigrams those with no count are the words that the text does not have, and <s>, which is never predicted.
        kept_N = np.ones(base, dtype=np.bool_) if number == 1 else one.text_count_N > max_pruned
        if number == 1:
            count_N[vocab_size] = 0
        discounts, is_fallback = find_discounts(count_N)
        off_N = np.where(kept_N, np.array([0.0, *discounts])[np.minimum(count_N, 3)], count_N)
        context_N = one.key_N // base
        total_C = np.bincount(context_N, weights=count_N)
        with np.errstate(invalid="ignore"):  # most n-grams are no contexts
            left_C = np.bincount(context_N, weights=off_N) / total_C
        lower_N = prob_W if number == 1 else orders[-1].prob_N[one.suffix_N]
        prob_N = (count_N - off_N) / total_C[context_N] + left_C[context_N] * lower_N
        if number > 1:
            (is_context,) = np.nonzero(total_C)
            orders[-1].backoff_N[is_context] = left_C[is_context]
        orders.append(Order(one.key_N, prob_N, np.ones(len(prob_N)), kept_N, discounts, is_fallback))
    return orders


def pruned_counts(prune: Sequence[int], order: int) -> list[int]:
    """Give a number for each order, refusing those that would leave an n-gram without its context."""
    shown = ",".join(map(str, prune))
    if not prune or len(prune) > order:
        raise UserError(f"The pruned counts are '{shown}': give one number for each of the {order} orders, or fewer.")
    filled = [*prune, *[prune[-1]] * (order - len(prune))]
    if len(prune) == 1:
        filled[0] = 0
    if filled[0] != 0 or sorted(filled) != filled:
        raise UserError(
            f"The pruned counts are '{shown}': they must start with 0, because single words are never left out, and no "
            "number may be smaller than the one before it, such as 0,0,1."
        )
    return filled


def _count(ids: Ints, base: int, order: int, progress: Progress) -> list[_Counted]:
    """Count the n-grams of each order in the text; unigrams are all words, seen or not."""
    start = base - 1
    is_first = np.concatenate([[True], ids[:-1] == END])
    # Before a sentence's first word stands <s>, once.
    text_T = np.full(len(ids) + int(is_first.sum()), start, dtype=np.int32)
    text_T[np.arange(len(ids)) + np.cumsum(is_first)] = ids
    goes_on_T = np.append(text_T[1:] != start, False)
    word_W = np.arange(base)
    counted = [_Counted(word_W, np.zeros_like(word_W), np.bincount(text_T, minlength=base), word_W == start)]
    # Where in the text the n-grams of an order end, and which ones they are.
    end_T, place_T = np.arange(len(text_T)), text_T.astype(np.int64)
    for number in range(2, order + 1):
        progress(number - 1, order)
        inside_T = goes_on_T[end_T]
        end_T, place_T = end_T[inside_T] + 1, place_T[inside_T]
        key_N, place_T, count_N = np.unique(place_T * base + text_T[end_T], return_inverse=True, return_counts=True)
        before, context_N, word_N = counted[-1], key_N // base, key_N % base
        suffix_N = np.searchsorted(before.key_N, before.suffix_N[context_N] * base + word_N)
        counted.append(_Counted(key_N, suffix_N, count_N, before.at_start_N[context_N]))
    return counted
