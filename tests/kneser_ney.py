"""Modified Kneser-Ney smoothing as Chen and Goodman (1998) write it, by dictionaries: slow, and all of its own."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence

Ngram = tuple[int, ...]


def by_definition(
    sequences: Sequence[tuple[Sequence[int], int]],
    order: int,
    num_outcomes: int,
    discounts_of: Callable[[int, list[int]], Sequence[float]],
    prune: Sequence[int] = (),
) -> Callable[[Ngram, int], float]:
    """Give p(symbol | context) after sequences and how often each occurred.

    Each begins with a start, which is never predicted. `discounts_of` gives the discounts of a length of n-grams and
    their counts; n-grams of each length but the first that were seen `prune` times or less are left out.
    """
    seen: collections.Counter[Ngram] = collections.Counter()
    for symbols, times in sequences:
        for length in range(1, order + 1):
            for begin in range(len(symbols) - length + 1):
                if (begin, length) != (0, 1):
                    seen[tuple(symbols[begin : begin + length])] += times
    starts = {symbols[0] for symbols, _ in sequences}
    before = collections.defaultdict(set)
    followers = collections.defaultdict(list)
    for ngram in seen:
        before[ngram[1:]].add(ngram[0])
        followers[ngram[:-1]].append(ngram)
    count_of = {
        ngram: times if len(ngram) == order or ngram[0] in starts else len(before[ngram])
        for ngram, times in seen.items()
    }
    of_length = collections.defaultdict(list)
    for ngram, count in count_of.items():
        of_length[len(ngram)].append(count)
    discounts = {length: discounts_of(length, counts) for length, counts in of_length.items()}

    def off(ngram: Ngram) -> float:
        if prune and len(ngram) > 1 and seen[ngram] <= prune[len(ngram) - 1]:
            return count_of[ngram]
        return discounts[len(ngram)][min(count_of[ngram], 3) - 1]

    def prob(context: Ngram, symbol: int) -> float:
        lower = prob(context[1:], symbol) if context else 1 / num_outcomes
        if not followers[context]:
            return lower
        total = sum(count_of[ngram] for ngram in followers[context])
        left = sum(off(ngram) for ngram in followers[context]) / total
        ngram = (*context, symbol)
        own = (count_of[ngram] - off(ngram)) / total if ngram in count_of else 0.0
        return own + left * lower

    return prob
