"""What is measured, how it is called, and what a row of a table is."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.errors import argument, unknown_name

CONTEXTS = ("text", "sentence")
# What the base is called in the name of a column, and its natural logarithm.
BASES = {"2": ("bits", math.log(2)), "e": ("nats", 1.0), "10": ("base10", math.log(10))}

# The columns of some rows, in the order of their names.
Block = list[NDArray[np.generic]]


@dataclass(frozen=True)
class Measuring:
    """What is measured and how; `base` is 2, e or 10."""

    context: str = "text"
    normalised: bool = True
    spell: bool = False
    base: str = "2"
    entropy: bool = False
    ends: bool = False
    prefix: str = ""

    def __post_init__(self) -> None:
        if self.context not in CONTEXTS:
            raise unknown_name(f"value of {argument('context')}", self.context, CONTEXTS)
        if self.base not in BASES:
            raise unknown_name(f"value of {argument('base')}", self.base, BASES)

    @property
    def unit(self) -> str:
        """What a number is in, as names of columns say it."""
        return BASES[self.base][0]

    @property
    def columns(self) -> dict[str, type]:
        """The names of the columns and what is in them, in their order."""
        unit = self.unit
        columns: dict[str, type] = {f"surprisal_{unit}": float, f"word_surprisal_{unit}": float}
        columns |= {f"entropy_{unit}": float} if self.entropy else {}
        columns |= {"log10_frequency": float, "is_unknown": bool, "num_tokens": int}
        columns |= {f"end_{unit}": float} if self.ends else {}
        return {f"{self.prefix}{name}": kind for name, kind in columns.items()}


class Row(NamedTuple):
    """A word as it is shown, and what it belongs to: rows of one text, or sentence, are neighbours of equal values."""

    word: str
    text: Hashable = None
    sentence: Hashable = None
    is_glued: bool = False  # to the row before, without a blank


@dataclass
class Totals:
    """Sums over all rows so far; surprisals are in the base that was asked for."""

    num_rows: int = 0
    num_texts: int = 0
    num_sentences: int = 0
    num_unknown: int = 0
    num_empty: int = 0  # rows without a surprisal
    surprisal: float = 0.0  # of all rows that have one
    end: float = 0.0  # of the sentence ends
