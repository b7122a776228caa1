"""Cells that are cut one by one have the words of the whole text, and glued cells those of what they are together."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bnce import Normaliser
from bnce.data.surprisal import cell_cutter, places_in

NORMALISERS = [
    Normaliser(lowercase, tokens, sentences, numbers)
    for lowercase, tokens, sentences, numbers in itertools.product(
        (True, False), ("words", "whitespace"), ("split", "lines"), ("keep", "zero", "word")
    )
]
PARTS = [
    "do",
    "n't",
    "England",
    ",",
    ".",
    "1,000",
    ".5",
    "İ",
    "ΟΔΟΣ",
    "'",
    "e\u0301",
    "\u0301",
    "_",
    "!",
    " ",
    "a. b",
    "",
]
CELLS = st.sampled_from(PARTS) | st.text(st.characters(codec="utf-8"), max_size=5)
some_normaliser = st.sampled_from(NORMALISERS)


@given(st.lists(CELLS, max_size=8), some_normaliser)
def test_cells_one_by_one_are_the_whole_text(cells: list[str], normaliser: Normaliser) -> None:
    cut = cell_cutter(normaliser, splits=True)
    sentences: list[list[str]] = [[]]
    for cell in cells:
        found, ends = cut(cell)
        for place, words in enumerate(found):
            sentences += [[]] if place else []
            sentences[-1] += words
        sentences += [[]] if ends else []
    # A probe at the end, for </s> there is no word in text that is cut at blanks.
    expected = normaliser(" ".join([*cells, "x"]))
    sentences[-1].append("x")
    assert [words for words in sentences if words] == expected


@given(st.lists(CELLS, min_size=1, max_size=6), some_normaliser | st.just(Normaliser(tokens="spoken")))
def test_every_word_of_glued_cells_has_a_place(cells: list[str], normaliser: Normaliser) -> None:
    cut = cell_cutter(normaliser, splits=True)
    found, places = cut("".join(cells))[0], places_in(cut, cells)
    assert len(places) == sum(map(len, found))
    assert places == sorted(places)
    assert all(0 <= place < len(cells) for place in places)


@pytest.mark.parametrize(
    ("cells", "words", "places"),
    [
        (["do", "n't"], ["don't"], [0]),
        (["England", ",", "too"], ["england", ",", "too"], [0, 1, 2]),
        (["(", "", "1,", "000", ")"], ["(", "<num>", ")"], [0, 2, 4]),
        (["İa", "b", "."], ["i̇ab", "."], [0, 2]),
    ],
)
def test_where_words_begin(cells: list[str], words: list[str], places: list[int]) -> None:
    cut = cell_cutter(Normaliser(numbers="word"), splits=True)
    assert list(itertools.chain(*cut("".join(cells))[0])) == words
    assert places_in(cut, cells) == places


@pytest.mark.parametrize(
    ("cells", "places"),
    [
        (["do", "n't"], [0]),
        (["25", "%"], [0, 0, 1]),
        (["(", "Mr", ".", ")"], [1]),
        (["$", "5", ",", "England"], [1, 1, 3]),
        (["1", "848"], [0, 1, 1]),
    ],
)
def test_words_that_are_not_written_as_they_are_said(cells: list[str], places: list[int]) -> None:
    assert places_in(cell_cutter(Normaliser(tokens="spoken"), splits=True), cells) == places
