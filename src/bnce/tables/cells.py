"""From the cells of a table to the words of a model: each cell is cut as the training text was, and keeps its words.

Cells stand in the text with a blank between them, and no word of a model spans a blank. So a cell that is cut by itself
has the words that it has in the text, whatever a table calls a word: "England," is a word and a mark, "New York" two.
Cells without a blank between them ("do" and "n't") are cut as one, and each word goes to the cell in which it begins.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from bnce.text.normalise import Normaliser

# A word without marks, put behind a cell to see whether the sentence goes on there.
_PROBE = "Q"
# Cells are words, and words repeat. Long cells are rare, and would fill the memory.
_KEPT_CELLS = 2**16
_KEPT_LETTERS = 64


class Cell(NamedTuple):
    """The words of a cell by sentence, of which the first goes on with the one that is open; whether the last ends."""

    sentences: tuple[tuple[str, ...], ...]
    ends: bool


def cell_cutter(normaliser: Normaliser, split: bool) -> Callable[[str], Cell]:
    """Make what cuts cells; with `split` sentences end where they do in the training text, else nowhere."""
    if not split:
        normaliser = replace(normaliser, sentences="lines")

    def cut(cell: str) -> Cell:
        *whole, last = normaliser(f"{cell} {_PROBE}")
        ends = bool(whole) and len(last) == 1
        return Cell(tuple(map(tuple, whole if ends else (*whole, last[:-1]))), ends)

    kept = functools.lru_cache(_KEPT_CELLS)(cut)
    return lambda cell: kept(cell) if len(cell) <= _KEPT_LETTERS else cut(cell)


def places_in(normaliser: Normaliser, cells: Sequence[str]) -> list[int]:
    """Tell for every word of some cells that are written as one in which of them it begins, by counting letters."""
    if normaliser.tokens == "spoken":
        return _places_in_spoken(replace(normaliser, sentences="lines"), cells)
    # Numbers as they are written, and `</s>` too: the words of a model may be shorter or longer.
    whole = "".join(cells)
    if normaliser.tokens == "whitespace":
        widths = [len(word) for word in _fold(normaliser, whole).split()]
    else:
        keeping = replace(normaliser, sentences="lines", numbers="keep")
        widths = [len(word) for words in keeping(whole) for word in words]
    begins = itertools.accumulate([0, *widths[:-1]]) if widths else ()
    ends = list(itertools.accumulate(len("".join(_fold(normaliser, cell).split())) for cell in cells))
    return [bisect.bisect_right(ends, begin) for begin in begins]


def _places_in_spoken(normaliser: Normaliser, cells: Sequence[str]) -> list[int]:
    """Tell the same of words that are not written as they are said: a cell has the words that are new with it."""
    num_words = [sum(map(len, normaliser("".join(cells[:end])))) for end in range(1, len(cells) + 1)]
    places: list[int] = []
    for place, num in enumerate(num_words):
        places += [place] * (min(num, num_words[-1]) - len(places))
    return places


def _fold(normaliser: Normaliser, text: str) -> str:
    return text.lower() if normaliser.lowercase else text


def is_word(token: str) -> bool:
    """Tell a word from a mark: a word has a letter or a digit."""
    return any(map(str.isalnum, token))
