"""Words of like spelling, against sets of letter groups in plain Python."""

from __future__ import annotations

import math
import random
import time

import numpy as np
import pytest

from bnce.lexicon.spelling import GROUP_LENGTHS, nearest_words


def groups(word: str) -> set[str]:
    marked = f"\x02{word}\x03"
    return {marked[start : start + size] for size in GROUP_LENGTHS for start in range(len(marked) - size + 1)}


def plain_nearest(words: list[str], query: str, num_nearest: int) -> list[tuple[int, float]]:
    """Compute the same with sets; a group that no word has weighs ln V."""
    num_words: dict[str, int] = {}
    for word in words:
        for group in groups(word):
            num_words[group] = num_words.get(group, 0) + 1

    def product(some: set[str]) -> float:
        return sum(math.log(max(2, len(words)) / num_words.get(group, 1)) ** 2 for group in some)

    cosines = []
    for place, word in enumerate(words):
        if common := product(groups(word) & groups(query)):
            cosines.append((place, common / math.sqrt(product(groups(word)) * product(groups(query)))))
    return sorted(cosines, key=lambda pair: (-pair[1], pair[0]))[:num_nearest]


def test_equals_the_plain_search() -> None:
    generator = random.Random(3)
    words = list(dict.fromkeys("".join(generator.choices("abcé字", k=generator.randint(1, 7))) for _ in range(400)))
    queries = ["a", "abc", "éa字字", "zzzz", "ababababab", words[7], "𝒳abc"]
    for query, (found, cosines) in zip(queries, nearest_words(words, queries, 6), strict=True):
        expected = plain_nearest(words, query, 6)
        assert cosines.tolist() == pytest.approx([cosine for _, cosine in expected], abs=1e-9)
        # Equals may come in another order where there are more of them than are asked for.
        assert len(found) == len(expected)
        assert [place for place, _ in expected][:1] == found.tolist()[:1]


def test_says_what_a_person_would() -> None:
    words = ["style", "styles", "led", "house", "houses", "1812", "1903", "walking"]
    found = [
        [words[place] for place in places] for places, _ in nearest_words(words, ["styled", "1813", "talking", "ζ"], 2)
    ]
    assert found == [["style", "styles"], ["1812"], ["walking"], []]


def test_a_word_is_nearest_to_itself() -> None:
    ((places, cosines),) = nearest_words(["same", "other", "sam"], ["same"], 3)
    assert places[0] == 0
    assert cosines[0] == pytest.approx(1.0)


def test_many_words_take_no_loop() -> None:
    letters = np.random.default_rng(1).integers(97, 117, (200_000, 7), dtype=np.uint8)
    words = [bytes(row).decode() for row in letters]
    started = time.process_time()
    assert all(len(found) == 5 for found, _ in nearest_words(words, words[:50], 5))
    # Measured at 0.7 s; with a loop over words it would be half a minute.
    assert time.process_time() - started < 8
