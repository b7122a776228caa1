"""What is measured, how it is called, which columns a table has, and what a row of it is."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.errors import UserError, argument

_TRUTHS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False, "none": False}

# The columns of some rows, in the order of their names.
Block = list[NDArray[np.generic]]


@dataclass(frozen=True)
class Measuring:
    """What is measured and how."""

    normalised: bool = True
    spell: bool = False
    entropy: bool = False
    prefix: str = ""

    @property
    def columns(self) -> dict[str, type]:
        """The names of the columns and what is in them, in their order."""
        columns: dict[str, type] = {"surprisal_bits": float, "word_surprisal_bits": float}
        columns |= {"entropy_bits": float} if self.entropy else {}
        columns |= {"log10_frequency": float, "is_unknown": bool, "num_tokens": int}
        return {f"{self.prefix}{name}": kind for name, kind in columns.items()}


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are what."""

    word: str = "word"
    text: Sequence[str] = ()
    sentence: str | None = None
    glued: str | None = None

    @property
    def names(self) -> list[str]:
        """The names of all of them."""
        return [self.word, *self.text, *(name for name in (self.sentence, self.glued) if name is not None)]


class Row(NamedTuple):
    """A word as it is shown, and what it belongs to: rows of one text, or sentence, are neighbours of equal values."""

    word: str
    text: Hashable = None
    sentence: Hashable = None
    is_glued: bool = False  # to the row before, without a blank


@dataclass
class Totals:
    """Sums over all rows so far; surprisals are in bits."""

    num_rows: int = 0
    num_texts: int = 0
    num_sentences: int = 0
    num_unknown: int = 0
    num_empty: int = 0  # rows without a surprisal
    surprisal: float = 0.0  # of all rows that have one
    end: float = 0.0  # of the sentence ends


def find_column(names: Sequence[str], name: str, table: str) -> int:
    """Find the one column of a name."""
    places = [place for place, one in enumerate(names) if one == name]
    if len(places) != 1:
        found = f"has {len(places)} columns" if places else "has no column"
        listed = ", ".join(f"'{one:.40}'" for one in names[:20])
        raise UserError(f"{table} {found} '{name}': its columns are {listed}; name one of them.")
    return places[0]


def check_columns(names: Sequence[str], columns: Columns, measuring: Measuring, table: str) -> None:
    """Refuse a table that lacks a column, or has one of those that are to be added."""
    for name in columns.names:
        find_column(names, name, table)
    for name in measuring.columns:
        if name in names:
            raise UserError(
                f"{table} already has a column '{name}': remove it, or give other names with {argument('prefix')}."
            )


def truth(value: object, number: int, table: str) -> bool:
    """Read a cell that says yes or no; an empty one says no."""
    found = _TRUTHS.get(str(value).lower())
    if found is None:
        raise UserError(
            f"{table}, row {number} has {value!r:.40} in the column of {argument('glued')}: give true or false."
        )
    return found
