"""Which documents are kept: limits of perplexity, given or fitted on a sample, and how perplexities are distributed.

CCNet sorts documents into head, middle and tail by two percentiles of their perplexity; one limit keeps those below it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce import files
from bnce.errors import UserError, argument
from bnce.files import read_object

FORMAT, VERSION = "bnce-thresholds", 1
BUCKETS = ("head", "middle", "tail")
KEPT = ("kept", "rest")
ALL = ("all",)
BINS = 100  # of a factor of ten, in what is counted
SHOWN_QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
_PICTURE_ROWS, _PICTURE_WIDTH = 16, 40


@dataclass(frozen=True)
class Choice:
    """What is asked for: a limit, or percentiles from which limits are fitted."""

    parts: tuple[str, ...] = ALL
    limits: tuple[float, ...] = ()
    percentiles: tuple[float, ...] = ()

    @property
    def is_fitted(self) -> bool:
        """Whether limits are known."""
        return len(self.limits) == len(self.parts) - 1

    @classmethod
    def of(cls, max_perplexity: float | None, keep: str | None, buckets: str | None) -> Choice:
        """Read what a command says, at most one of these."""
        given = [
            name for name, one in (("max_perplexity", max_perplexity), ("keep", keep), ("buckets", buckets)) if one
        ]
        if len(given) > 1:
            raise UserError(f"{argument(given[0])} and {argument(given[1])} choose documents in two ways: give one.")
        if max_perplexity is not None:
            if not 1 <= max_perplexity < math.inf:
                raise UserError(f"{argument('max_perplexity')} is {max_perplexity:g}: give a number of 1 or more.")
            return cls(KEPT, (float(max_perplexity),))
        if keep is not None:
            return cls(KEPT, (), _percentiles(keep, 1, "keep", "30%"))
        if buckets is not None:
            return cls(BUCKETS, (), _percentiles(buckets, 2, "buckets", "30,60"))
        return cls()

    def fit(self, perplexity_N: NDArray[np.float64]) -> Choice:
        """Take limits from the perplexities of a sample."""
        known = perplexity_N[np.isfinite(perplexity_N)]
        if not len(known):
            raise UserError("No document of the sample has words, so no limits can be fitted: give other documents.")
        limits = tuple(float(f"{limit:.6g}") for limit in np.percentile(known, self.percentiles))
        return Choice(self.parts, limits, self.percentiles)

    def choose(self, perplexity_N: NDArray[np.float64]) -> NDArray[np.int64]:
        """Give the part of every document; one without words, or without a finite perplexity, is in the last."""
        return np.searchsorted(np.array(self.limits), np.nan_to_num(perplexity_N, nan=math.inf), side="left")


def write_thresholds(path: Path, choice: Choice, about: dict[str, Any]) -> None:
    """Save limits with what they were fitted on."""
    record = {"format": FORMAT, "version": VERSION, **asdict(choice), **about}
    files.write_json(path, record)


def read_thresholds(path: Path, model: dict[str, Any]) -> Choice:
    """Read limits, refusing those of another model or of another way to score."""
    try:
        record = read_object(path)
        if record["format"] != FORMAT or record["version"] != VERSION:
            raise ValueError(f"format {record['format']}, version {record['version']}")
        choice = Choice(
            tuple(map(str, record["parts"])),
            tuple(map(float, record["limits"])),
            tuple(map(float, record["percentiles"])),
        )
        if choice.parts not in (KEPT, BUCKETS) or not choice.is_fitted or sorted(choice.limits) != list(choice.limits):
            raise ValueError(f"limits {list(choice.limits)} for {', '.join(choice.parts)}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"'{path}' is not a file of thresholds from 'bnce filter' ({error!s:.100}): give the thresholds.json of "
            "an output directory."
        ) from error
    for name, value in model.items():
        if record.get(name) != value:
            raise UserError(
                f"The thresholds '{path}' were fitted with another {name.replace('_', ' ')} "
                f"({record.get(name)!s:.20}, not {value!s:.20}): perplexities cannot be compared; fit them again."
            )
    return choice


@dataclass
class Distribution:
    """How often perplexities occur, by bins of a hundredth of a factor of ten: sums can be merged."""

    counts: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, perplexity_N: NDArray[np.float64]) -> Distribution:
        """Count some perplexities."""
        known = perplexity_N[np.isfinite(perplexity_N)]
        bins, counts = np.unique(np.floor(np.log10(np.maximum(known, 1e-9)) * BINS).astype(int), return_counts=True)
        return cls(Counter(dict(zip(bins.tolist(), counts.tolist(), strict=True))))

    @property
    def total(self) -> int:
        """How many documents have a perplexity."""
        return self.counts.total()

    def quantiles(self, shares: Sequence[float] = SHOWN_QUANTILES) -> dict[str, float]:
        """Give quantiles, to 1%."""
        if not self.counts:
            return {}
        places = sorted(self.counts)
        sums = np.cumsum([self.counts[place] for place in places])
        found = np.searchsorted(sums, np.array(shares) * sums[-1], side="left")
        return {
            f"{share:g}": float(f"{10 ** ((places[at] + 0.5) / BINS):.4g}")
            for share, at in zip(shares, found, strict=True)
        }

    def picture(self, limits: Sequence[float] = ()) -> list[str]:
        """Draw lines of text, the perplexity upwards by equal factors; the first and last row have all beyond them."""
        if not self.counts:
            return ["No document has a perplexity."]
        low, high = (math.log10(value) for value in self.quantiles((0.005, 0.995)).values())
        low, high = min(low, high - 0.05), max(high, low + 0.05)
        edges = np.linspace(low, high, _PICTURE_ROWS + 1)
        places = np.array([(place + 0.5) / BINS for place in self.counts])
        row_N = np.clip(np.searchsorted(edges, places, side="right") - 1, 0, _PICTURE_ROWS - 1)
        rows = np.bincount(row_N, np.array(list(self.counts.values())), _PICTURE_ROWS)
        marks = np.clip(np.searchsorted(edges, np.log10(np.array(limits)), side="right") - 1, 0, _PICTURE_ROWS - 1)
        shown = [f"{10**edge:.4g}" for edge in edges.tolist()]
        ranges = [f"{low} to {high}" for low, high in itertools.pairwise(shown)]
        ranges = [f"below {shown[1]}", *ranges[1:-1], f"{shown[-2]} and above"]
        width = max(map(len, ranges))
        lines = [f"{'perplexity':>{width}} share of documents"]
        for number, (name, count) in enumerate(zip(ranges, rows.tolist(), strict=True)):
            bar = "█" * round(_PICTURE_WIDTH * count / rows.max())
            inside = (limit for limit, at in zip(limits, marks.tolist(), strict=True) if at == number)
            mark = "".join(f" ◄ limit {limit:.4g}" for limit in inside)
            lines.append(f"{name:>{width}} {bar}{' ' if bar else ''}{count / self.total:.1%}{mark}")
        return lines


def _percentiles(text: str, number: int, name: str, example: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part.strip().removesuffix("%")) for part in text.split(","))
        if len(found) != number or list(found) != sorted(set(found)) or not all(0 < one < 100 for one in found):
            raise ValueError
    except ValueError as error:
        several = "a percentage" if number == 1 else "two percentages, the smaller one first,"
        raise UserError(
            f"{argument(name)} is '{text}': give {several} above 0 and below 100, such as {example}."
        ) from error
    return found
