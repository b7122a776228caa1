"""Fill the figures that README and docs quote from the files under benchmarks/results.

    python benchmarks/publish.py            # rewrite the pages
    python benchmarks/publish.py --check    # name what differs, and exit with 1

A table is a block between `<!-- NAME: from FILES -->` and `<!-- end -->`, which is written as a whole. A figure inside
a sentence needs no mark in the page: benchmarks/quotes has the words around it, with {} in its place. To quote a new
result, add a `Block` or a `said(…)` to the module of its subject there, and run this script. If you reword a sentence
that has figures, change its words there, too: until then the check names it.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quotes import all_quotes
from quotes.sources import Block, Said

ROOT = Path(__file__).parents[1]
Quote = Block | Said


@dataclass(frozen=True)
class Place:
    """Where a page quotes, from one character to another, and what belongs there."""

    start: int
    end: int
    wanted: str


def places(page: str, quote: Quote) -> list[Place]:
    """Find where a page has a quote. A quote must be there, and once."""
    found = list(pattern(quote).finditer(page))
    if len(found) != 1:
        what = f"'{quote.words}'" if isinstance(quote, Said) else f"the block '{quote.name}'"
        raise LookupError(f"{quote.page} has {what} {len(found)} times instead of once")
    if isinstance(quote, Block):
        wanted = f"<!-- {quote.name}: from {quote.sources} -->\n{quote.text}\n<!-- end -->"
        return [Place(found[0].start(), found[0].end(), wanted)]
    return [Place(*found[0].span(number), figure) for number, figure in enumerate(quote.figures, start=1)]


def pattern(quote: Quote) -> re.Pattern[str]:
    """Give the expression that finds a quote, whatever figures are in it."""
    if isinstance(quote, Block):
        marks = rf"^<!-- {re.escape(quote.name)}: from [^\n]*? -->\n.*?^<!-- end -->$"
        return re.compile(marks, re.DOTALL | re.MULTILINE)
    parts = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in quote.words.split("{}")]
    # A figure ends where its digits end: 66.8 is not 66 with a full stop after it.
    return re.compile(r"(\S+?)(?![.,]?\d)".join(parts))


def unknown_blocks(page: str, quotes: Iterable[Quote]) -> list[str]:
    """Name the blocks that nothing writes."""
    known = {quote.name for quote in quotes if isinstance(quote, Block)}
    return [name for name in re.findall(r"^<!-- (\S+): from .*-->$", page, re.MULTILINE) if name not in known]


def fill(page: str, found: Iterable[Place]) -> str:
    """Write what belongs at the places of a page."""
    last_first = sorted(found, key=lambda place: place.start, reverse=True)
    for later, earlier in itertools.pairwise(last_first):
        if earlier.end > later.start:
            raise LookupError(f"two quotes overlap at '{page[later.start : earlier.end]}'")
    for place in last_first:
        page = page[: place.start] + place.wanted + page[place.end :]
    return page


def differences(name: str, page: str, found: Iterable[Place]) -> Iterator[str]:
    """Say what a page has instead of what belongs there, by line."""
    for place in found:
        first = page.count("\n", 0, place.start) + 1
        told, wanted = page[place.start : place.end].split("\n"), place.wanted.split("\n")
        if len(told) != len(wanted):
            yield f"{name}:{first}: {len(told)} lines instead of {len(wanted)} ({wanted[0]})"
            continue
        for line, (one, other) in enumerate(zip(told, wanted, strict=True), start=first):
            if one != other:
                yield f"{name}:{line}: '{one}', but the results say '{other}'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill or check every page that quotes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="Change nothing; name what differs, and exit with 1.")
    parser.add_argument("--pages", type=Path, default=ROOT, metavar="DIR", help="Directory of README.md and docs.")
    given = parser.parse_args(arguments)
    quotes = all_quotes()
    problems: list[str] = []
    for name in sorted({quote.page for quote in quotes}):
        path, of_page = given.pages / name, [quote for quote in quotes if quote.page == name]
        page, found = path.read_text(encoding="utf-8"), []
        problems += [f"{name}: nothing writes the block '{block}'" for block in unknown_blocks(page, of_page)]
        for quote in of_page:
            try:
                found += places(page, quote)
            except LookupError as error:
                problems.append(str(error))
        if given.check:
            problems += differences(name, page, found)
        elif (filled := fill(page, found)) != page:
            path.write_text(filled, encoding="utf-8")
            print(f"{name} was changed.")
    for problem in problems:
        print(problem)
    if problems and given.check:
        print("Run `python benchmarks/publish.py`, and look at what it changes.")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
