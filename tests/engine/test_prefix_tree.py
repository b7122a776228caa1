"""Texts that begin alike: each distinct beginning goes through the network once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_corpus import END

from bnce.engine.network import Query
from bnce.engine.packer import score
from bnce.engine.prefix_tree import levels

from .networks import network_of

HYPOTHESES = [
    [4, 5, 6, 7, END],
    [4, 5, 6, 8, END],
    [4, 5, END],
    [4, 5, 6, 7, END],  # the same again
    [],
    [9, END],
    [4, 5, 6, 7, 7, 7],  # has no end
    [END],
]
TEXTS = [np.array(words, dtype=np.int64) for words in HYPOTHESES]


def test_each_distinct_beginning_goes_through_the_network_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of("lstm")
    widths: list[int] = []
    normalised: list[int] = []
    branch, log_normaliser = network.branch, network.log_normaliser
    monkeypatch.setattr(network, "branch", lambda *given: widths.append(len(given[1])) or branch(*given))
    monkeypatch.setattr(
        network, "log_normaliser", lambda hidden: normalised.append(len(hidden)) or log_normaliser(hidden)
    )
    score(network, TEXTS, Query(log_z=True), share=True)
    # 4 and 9 go on; 4 5; 4 5 6; 4 5 6 7 and 4 5 6 8; 4 5 6 7 7.
    assert widths == [2, 1, 1, 2, 1]
    assert normalised == [1 + 2 + 1 + 1 + 2 + 1], "levels wait for each other"


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=12))
def test_beginnings_are_counted_as_a_set_counts_them(texts: list[list[int]]) -> None:
    distinct = {tuple(text[: place + 1]) for text in texts for place in range(len(text))}
    length_S = np.array([len(text) for text in texts], dtype=np.int64)
    word_N = np.array([word for text in texts for word in text], dtype=np.int64)
    found = levels(word_N, np.cumsum(length_S) - length_S, length_S, np.zeros_like(length_S))
    assert sum(len(level.word_B) for level in found) == len(distinct)


@pytest.mark.parametrize(("name", "most"), [("prefix_tree.TREE_TEXTS", 3), ("network.STATE_NUMBERS", 2 * 2 * 8 - 1)])
def test_trees_are_cut_at_a_bound(monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    """By texts, and by what their states hold."""
    network = network_of("lstm")
    whole = score(network, TEXTS, share=True).score_N
    monkeypatch.setattr(f"bnce.engine.{name}", most)
    np.testing.assert_allclose(score(network, TEXTS, share=True).score_N, whole, atol=1e-6, rtol=1e-6)
