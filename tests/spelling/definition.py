"""Spelling by definition: modified Kneser-Ney smoothing as Chen and Goodman (1998) write it, by dictionaries."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable

import numpy as np

from bnce.spelling.levels import END, FIRST_BYTE, NUM_OUTCOMES, START, find_discounts

Ngram = tuple[int, ...]


def spell(word: str) -> list[int]:
    return [START, *(byte + FIRST_BYTE for byte in word.encode()), END]


def by_definition(words: list[str], counts: list[int], order: int) -> Callable[[Ngram, int], float]:
    """Give p(symbol | context) as Chen and Goodman write it, by dictionaries: slow, and all of its own."""
    seen: collections.Counter[Ngram] = collections.Counter()
    for word, count in zip(words, counts, strict=True):
        symbols = spell(word)
        for length in range(1, order + 1):
            for begin in range(len(symbols) - length + 1):
                if (begin, length) != (0, 1):  # the start is never predicted
                    seen[tuple(symbols[begin : begin + length])] += count
    before = collections.defaultdict(set)
    for ngram in seen:
        before[ngram[1:]].add(ngram[0])
    count_of = {
        ngram: times if len(ngram) == order or ngram[0] == START else len(before[ngram])
        for ngram, times in seen.items()
    }
    followers = collections.defaultdict(list)
    for ngram in seen:
        followers[ngram[:-1]].append(ngram)
    of_length = collections.defaultdict(list)
    for ngram, times in count_of.items():
        of_length[len(ngram)].append(times)
    discounts = {length: find_discounts(np.array(times))[0] for length, times in of_length.items()}

    def off(ngram: Ngram) -> float:
        return discounts[len(ngram)][min(count_of[ngram], 3) - 1]

    def prob(context: Ngram, symbol: int) -> float:
        lower = prob(context[1:], symbol) if context else 1 / NUM_OUTCOMES
        if not followers[context]:
            return lower
        total = sum(count_of[ngram] for ngram in followers[context])
        left = sum(off(ngram) for ngram in followers[context]) / total
        ngram = (*context, symbol)
        own = (count_of[ngram] - off(ngram)) / total if ngram in count_of else 0.0
        return own + left * lower

    return prob


def log_prob(prob: Callable[[Ngram, int], float], word: str, order: int) -> float:
    """Compute ln p(word) byte by byte."""
    symbols = spell(word)
    places = range(1, len(symbols))
    return math.fsum(math.log(prob(tuple(symbols[max(0, at - order + 1) : at]), symbols[at])) for at in places)
