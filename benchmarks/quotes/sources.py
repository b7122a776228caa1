"""What a page may quote, the results that it quotes from, and how figures are written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
H200 = "benchmarks/results/h200"

Row = dict[str, Any]


@dataclass(frozen=True)
class Block:
    """A part of a page that is written as a whole, between `<!-- NAME: from SOURCES -->` and `<!-- end -->`."""

    page: str
    name: str
    sources: str
    text: str


@dataclass(frozen=True)
class Said:
    """A sentence of a page, or a part of it: `{}` stands where a figure is. Line breaks in the page do not matter."""

    page: str
    words: str
    figures: tuple[str, ...]


def said(page: str, words: str, *figures: str) -> Said:
    """Quote figures in a sentence."""
    if words.count("{}") != len(figures):
        raise ValueError(f"'{words}' has room for {words.count('{}')} figures, and there are {len(figures)}.")
    if words.startswith("{}") or words.endswith("{}"):
        raise ValueError(f"'{words}' must have words on both sides of its figures, or they could not be found.")
    if any(re.search(r"\s", figure) or not figure for figure in figures):
        raise ValueError(f"'{words}' has {figures}: a figure is written without blanks.")
    return Said(page, words, figures)


def text_of(name: str) -> str:
    """Read a result file."""
    return (RESULTS / name).read_text(encoding="utf-8")


def lines_of(name: str) -> list[Row]:
    """Read a result file of JSON lines."""
    return [json.loads(line) for line in text_of(name).splitlines()]


def experiment(name: str) -> dict[tuple[str, str], Row]:
    """Read the runs of an experiment by model and loss."""
    rows: list[Row] = json.loads(text_of(f"h200/experiments/{name}.json"))["rows"]
    return {(row["model"], row["loss"]): row for row in rows}


def table(text: str, first: str) -> list[dict[str, str]]:
    """Read the table whose head begins with `first`, by the names of its columns."""
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith(f"| {first}"))
    head = cells(lines[start])
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(dict(zip(head, cells(line), strict=True)))
    return rows


def cells(line: str) -> list[str]:
    """Cut a line of a table."""
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def number(cell: str) -> float:
    """Read the first number of a cell: the median, where its spread follows."""
    found = re.search(r"[-−]?\d[\d,]*(?:\.\d+)?", cell)
    if found is None:
        raise ValueError(f"'{cell}' has no number.")
    return float(found[0].replace(",", "").replace("−", "-"))


def markdown(head: str, columns: str, rows: Iterable[Sequence[str]]) -> str:
    """Write a table. `columns` has an l or an r per column: to the left or to the right."""
    ruler = "|".join("---:" if side == "r" else "---" for side in columns)
    lines = [head, f"|{ruler}|"]
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"{row} has not the {len(columns)} cells of '{head}'.")
        lines.append("|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|")
    return "\n".join(lines)


def millions(value: float) -> str:
    """Write a speed with three digits: `15.9M`, `8.80M`, `0.136M`."""
    digits = 1 if value >= 9.995e6 else 2 if value >= 9.995e5 else 3
    return f"{value / 1e6:.{digits}f}M"


def thousands(value: float) -> str:
    """Write a speed as `63.2K`."""
    return f"{value / 1e3:.1f}K"


def times(value: float) -> str:
    """Write a ratio: `5.5`, and from 20 on without a fraction."""
    return f"{value:.1f}" if value < 20 else f"{value:.0f}"


def above(value: float, base: float) -> float:
    """Say by how many per cent a value is above another; below it, the result is negative."""
    return 100 * (value / base - 1)


def the_one(figures: Iterable[str]) -> str:
    """Take the figure that a sentence says of several, which must all be alike."""
    (figure,) = set(figures)
    return figure


def spelled(value: float) -> str:
    """Write a small number as a word."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    return words[round(value)]
