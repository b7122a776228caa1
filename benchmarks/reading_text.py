"""Training text without the stories: which lines share nine words in a row with them, and the text without these lines.

Words are compared in lower case and without marks: "forty-seven" is two words, "it's" is "its". A run of words may go
on from one line to the next, but not from one story or document to another.
"""

from __future__ import annotations

import csv
import json
import lzma
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

NUM_WORDS = 9
# Any nine words in a row hold five that begin at a multiple of five: one look-up in five words finds every suspect.
NUM_ALIGNED = (NUM_WORDS + 1) // 2
WHOLE_DOCUMENTS = ("wiki",)  # elsewhere a document is a book, and a stock phrase is no reason to drop a book

_WORD = re.compile(r"[^\W_]+")
_APOSTROPHES = re.compile("['’]")


class Runs(NamedTuple):
    """Runs of words of the stories: the nine that count, and the five that are looked up first."""

    long: frozenset[tuple[str, ...]]
    short: frozenset[tuple[str, ...]]


def words_of(text: str) -> list[str]:
    """Cut text into the words that are compared."""
    return _WORD.findall(_APOSTROPHES.sub("", text.lower()))


def read_words(path: Path) -> list[dict[str, str]]:
    """Read the table of words and reading times."""
    with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def runs_of(stories: Iterable[str]) -> Runs:
    """Collect the runs of words of texts."""
    cut = [words_of(story) for story in stories]
    return Runs(*(frozenset(run for words in cut for run in _runs(words, size)) for size in (NUM_WORDS, NUM_ALIGNED)))


def stories_of(rows: list[dict[str, str]]) -> list[str]:
    """Join the words of each story."""
    stories: dict[str, list[str]] = {}
    for row in rows:
        stories.setdefault(row["story"], []).append(row["word"])
    return [" ".join(words) for words in stories.values()]


def _runs(words: list[str], size: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(size)), strict=False)


def _documents(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Read one document after the other: the number of its first line, and its lines."""
    first, lines = 0, list[str]()
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file):
            if line.strip():
                if not lines:
                    first = number
                lines.append(line)
            elif lines:
                yield first, lines
                lines = []
    if lines:
        yield first, lines


def find_shared(path: Path, runs: Runs, whole: bool) -> dict[str, Any]:
    """Find the lines of a file to leave out: those that share a run, or all lines of their document."""
    dropped: list[int] = []
    found = {"documents": 0, "lines": 0, "words": 0, "documents_with_drops": 0, "dropped_words": 0}
    for first, lines in _documents(path):
        cut = [words_of(line) for line in lines]
        words = [word for one in cut for word in one]
        found["documents"] += 1
        found["lines"] += len(lines)
        found["words"] += len(words)
        if runs.short.isdisjoint(zip(*(words[start::NUM_ALIGNED] for start in range(NUM_ALIGNED)), strict=False)):
            continue
        places = [place for place, run in enumerate(_runs(words, NUM_WORDS)) if run in runs.long]
        if not places:
            continue
        covered = {place + offset for place in places for offset in range(NUM_WORDS)}
        ends = list(accumulate(map(len, cut)))
        hit = [
            number
            for number, (end, one) in enumerate(zip(ends, cut, strict=True))
            if whole or not covered.isdisjoint(range(end - len(one), end))
        ]
        found["documents_with_drops"] += 1
        found["dropped_words"] += sum(len(cut[number]) for number in hit)
        dropped += [first + number for number in hit]
    return {**found, "dropped_lines": len(dropped), "line_numbers": dropped}


def find_all(sources: dict[str, Path], stories: list[str], num_processes: int) -> dict[str, dict[str, Any]]:
    """Find the lines to leave out of all files, one process per file."""
    runs = runs_of(stories)
    whole = [name.split("/")[0] in WHOLE_DOCUMENTS for name in sources]
    with ProcessPoolExecutor(num_processes) as pool:
        found = pool.map(find_shared, sources.values(), [runs] * len(sources), whole)
        return dict(zip(sources, found, strict=True))


def write_kept(source: Path, dropped: list[int], out: Path) -> None:
    """Write a file without the dropped lines."""
    leave_out = frozenset(dropped)
    part = out.with_suffix(".part")
    with lzma.open(source, "rb") as file, open(part, "wb") as kept:
        kept.writelines(line for number, line in enumerate(file) if number not in leave_out)
    part.rename(out)


def write_json(path: Path, value: Any) -> None:
    """Write a small file at once, so that no other process reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    part.rename(path)
