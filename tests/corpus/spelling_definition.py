"""Spelling by definition: modified Kneser-Ney smoothing of the bytes of words."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from kneser_ney import Ngram
from kneser_ney import by_definition as smoothed

from bnce.corpus.spelling import END, FIRST_BYTE, NUM_OUTCOMES, START, find_discounts


def spell(word: str) -> list[int]:
    return [START, *(byte + FIRST_BYTE for byte in word.encode()), END]


def by_definition(words: list[str], counts: list[int], order: int) -> Callable[[Ngram, int], float]:
    """Give p(symbol | context) of words and how often each occurred."""
    spelt = list(zip(map(spell, words), counts, strict=True))
    return smoothed(spelt, order, NUM_OUTCOMES, lambda _, times: find_discounts(np.array(times))[0])


def log_prob(prob: Callable[[Ngram, int], float], word: str, order: int) -> float:
    """Compute ln p(word) byte by byte."""
    symbols = spell(word)
    places = range(1, len(symbols))
    return math.fsum(math.log(prob(tuple(symbols[max(0, at - order + 1) : at]), symbols[at])) for at in places)
