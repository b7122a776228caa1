"""N-grams of bytes: equal to the definition, and a distribution after every context, seen or not."""

from __future__ import annotations

import random

import numpy as np
import pytest
from kneser_ney import Ngram

from bnce.corpus.spelling import (
    BITS,
    END,
    FIRST_BYTE,
    MAX_ORDER,
    START,
    add_up,
    find_ngrams,
    make_levels,
    probabilities,
)

from .spelling_definition import by_definition, spell

# With letters of one to four bytes, words of one letter, and one that is the start of others.
WORDS = ["a", "ab", "abba", "baba", "abacus", "été", "日本", "🙂", "cabbage", "baggage", "b" * 12]
OUTCOMES = [END, *range(FIRST_BYTE, FIRST_BYTE + 256)]


def learn(words: list[str], counts: list[int], order: int):
    ngram_P, begin_W = find_ngrams(words, order)
    times_P = np.repeat(counts, np.diff(begin_W, append=len(ngram_P)))
    return make_levels(*add_up(ngram_P, times_P), order)


def number(context: Ngram, symbol: int) -> int:
    found = 0
    for one in (*context, symbol):
        found = found << BITS | one
    return found


def contexts(order: int) -> list[Ngram]:
    """List contexts of words that were seen, of others, and of bytes by chance."""
    generator = random.Random(1)
    found: set[Ngram] = set()
    for word in [*WORDS, "", "abc", "bbb", "zebra", "\ud800"]:
        symbols = [START, *(byte + FIRST_BYTE for byte in word.encode("utf-8", "surrogatepass"))]
        found |= {tuple(symbols[max(0, end - order + 1) : end]) for end in range(1, len(symbols) + 1)}
    found |= {tuple(generator.choices(OUTCOMES[1:], k=order - 1)) for _ in range(20)}
    return sorted(found)


@pytest.mark.parametrize("order", [1, 2, 3, MAX_ORDER])
@pytest.mark.parametrize("counts", [[1] * len(WORDS), [place % 5 + 1 for place in range(len(WORDS))]])
def test_equals_the_definition(order: int, counts: list[int]) -> None:
    levels, expected = learn(WORDS, counts, order), by_definition(WORDS, counts, order)
    generator = random.Random(2)
    for context in contexts(order):
        context = context[len(context) - order + 1 :] if order > 1 else ()
        symbols = [END, *(spell("abcé")[1:-1]), *generator.choices(OUTCOMES, k=4)]
        found = probabilities(levels, np.array([number(context, symbol) for symbol in symbols]))
        np.testing.assert_allclose(found, [expected(context, symbol) for symbol in symbols], rtol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 4, MAX_ORDER])
@pytest.mark.parametrize("words", [[], ["a"], WORDS])
def test_what_comes_next_sums_to_one(order: int, words: list[str]) -> None:
    levels = learn(words, [2] * len(words), order)
    for context in contexts(order):
        prob = probabilities(levels, np.array([number(context, symbol) for symbol in OUTCOMES]))
        assert prob.min() > 0
        assert prob.sum() == pytest.approx(1, abs=1e-12)


def test_ngrams_stay_within_their_word() -> None:
    ngrams, begins = find_ngrams(["ab", "", "é"], 3)
    a, b, first, second = (byte + FIRST_BYTE for byte in b"ab\xc3\xa9")
    assert ngrams.tolist() == [
        number((START,), a),
        number((START, a), b),
        number((a, b), END),
        number((START,), END),
        number((START,), first),
        number((START, first), second),
        number((first, second), END),
    ]
    assert begins.tolist() == [0, 3, 4]
