"""The judgement of the filter benchmark: what is spoilt and what is not, areas, shares and their intervals."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from small_corpus import SPECIALS, open_small_run

from benchmarks import filter_judgement as judgement
from bnce import Normaliser

VOCABULARY = open_small_run(words=[*SPECIALS, *(f"w{number}" for number in range(2, 400))]).vocabulary


def make_passages(number: int) -> list[judgement.Passage]:
    draw = random.Random(1)
    sentence = lambda: " ".join(draw.choices(VOCABULARY.words[2:], k=8))  # noqa: E731
    documents = [[sentence() for _ in range(draw.randint(8, 30))] for _ in range(4 * number)]
    return judgement.make_passages(documents, Normaliser(False, "whitespace", "lines"), number, seed=2)


def test_passages_are_spoilt_as_they_say() -> None:
    passages, draw = make_passages(20), random.Random(3)
    assert len(passages) == 20
    for passage in passages:
        assert len(passage) == judgement.NUM_SENTENCES
        spoilt = judgement.replace_words(passage, VOCABULARY, draw)
        pairs = list(zip(*(itertools.chain.from_iterable(one) for one in (passage, spoilt)), strict=True))
        changed = [(before, after) for before, after in pairs if before != after]
        assert len(changed) == round(judgement.REPLACED_SHARE * len(pairs))
        for before, after in changed:
            ranks = VOCABULARY.encode([before, after])
            assert abs(int(ranks[1] - ranks[0])) <= max(5, 0.2 * ranks[0] + 1)
        mixed = judgement.shuffle_sentences(passage, draw)
        assert mixed != passage
        assert sorted(mixed) == sorted(passage)
    for before, after in zip(passages, judgement.swap_sentences(passages, draw), strict=True):
        assert sum(one != other for one, other in zip(before, after, strict=True)) == judgement.NUM_SWAPPED


def test_areas_and_shares() -> None:
    draw = np.random.default_rng(1)
    good, bad = draw.integers(0, 9, size=40).astype(float), draw.integers(2, 12, size=30).astype(float)
    pairs = [(one < other) + 0.5 * (one == other) for one in good for other in bad]
    assert judgement.roc_area(good, bad) == pytest.approx(np.mean(pairs))
    assert judgement.pair_share(good, good) == 0.5
    assert judgement.pair_share(good, good + 1) == 1.0
    found, leads = judgement.intervals([good, good], [bad, good[:30]], paired=False)
    assert found[0][1] < found[0][0] < found[0][2]
    assert found[1][0] < found[0][1]  # the second model sees no difference
    assert leads[0][1] > 0
    assert leads[1] == (0.0, 0.0, 0.0)
