"""Counts of all words of a text in bounded memory: sorted runs go to disk and are merged when they are asked for.

Real text has millions of words that occur once, whatever vocabulary it is cut to, and their number grows with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from bnce.text.sources import batches

# Some three million words; what waits, and what Arrow needs to join them, comes to ten times as much.
MAX_BYTES = 2**26
# Joining costs less a row if there are many, but what waits takes room too.
_WAITING_BYTES = 2**25
_BATCH_ROWS = 2**16
_LARGE_ROWS = 2**20

Table = Any


class Ranking(NamedTuple):
    """The most frequent words, and how many different ones there are in all."""

    words: list[str]
    num_types: int


class Tally:
    """How often every word occurs, of words and counts that come block by block."""

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES) -> None:
        self.directory, self.max_bytes = directory, max_bytes
        self._waiting: list[Table] = []
        self._waiting_bytes = self._sums_bytes = 0
        self._runs: list[Path] = []

    def add(self, words: Any, counts: NDArray[np.int64]) -> None:
        """Take in the words of a block, each once, and how often each occurs."""
        table = pyarrow.table({"word": words, "count": counts}).filter(pyarrow.compute.field("count") > 0)
        self._waiting.append(table)
        self._waiting_bytes += table.nbytes
        # The sums wait as well: joined again only when as much has come as they are, a row is copied a few times.
        if self._waiting_bytes > min(_WAITING_BYTES, self.max_bytes) + 2 * self._sums_bytes:
            self._join()

    def most_frequent(self, limit: int | None = None, min_count: int = 1) -> Ranking:
        """Order the words by frequency, equally frequent ones by spelling; no more than `limit` are ever held."""

        num_types = 0
        kept = join_counts([])
        for sums in self._merged():
            num_types += sums.num_rows
            kept = pyarrow.concat_tables([kept, sums.filter(pyarrow.compute.field("count") >= min_count)])
            if limit is not None and kept.num_rows > 2 * limit + _BATCH_ROWS:
                kept = _top(kept, limit)
        return Ranking(_top(kept, limit)["word"].to_pylist(), num_types)

    def most_frequent_outside(self, words: Sequence[str], limit: int) -> tuple[list[str], NDArray[np.int64]]:
        """Find the most frequent words that are not among these, with their counts."""
        kept = self._choose(words, False, limit, [("count", "descending"), ("word", "ascending")])
        return kept["word"].to_pylist(), kept["count"].to_numpy()

    def rarest_inside(self, words: Sequence[str], limit: int) -> list[str]:
        """Find the rarest of these words that the text has."""
        kept = self._choose(words, True, limit, [("count", "ascending"), ("word", "ascending")])
        found: list[str] = kept["word"].to_pylist()
        return found

    def _choose(self, words: Sequence[str], are_inside: bool, limit: int, order: list[tuple[str, str]]) -> Table:
        """Take the first words in some order, of those that are among `words`, or of those that are not."""
        known = pyarrow.array(words, pyarrow.string())
        kept = join_counts([])
        # Large tables: to look words up, each one makes an index of all of them again.
        for tables in batches(self._merged(), len, _LARGE_ROWS):
            sums = pyarrow.concat_tables(tables)
            is_inside = pyarrow.compute.is_in(sums["word"], value_set=known)
            found = sums.filter(is_inside if are_inside else pyarrow.compute.invert(is_inside))
            kept = pyarrow.concat_tables([kept, found]).sort_by(order).slice(0, limit).combine_chunks()
        return kept

    def _join(self) -> None:
        sums = join_counts(self._waiting)
        self._waiting, self._waiting_bytes, self._sums_bytes = [sums], sums.nbytes, sums.nbytes
        if sums.nbytes > self.max_bytes:
            self._spill()

    def _spill(self) -> None:
        path = self.directory / f"{len(self._runs)}.counts"
        sums = join_counts(self._waiting).sort_by("word")
        with pyarrow.ipc.new_stream(path, sums.schema) as writer:
            writer.write_table(sums, max_chunksize=_BATCH_ROWS)
        self._runs.append(path)
        self._waiting, self._waiting_bytes, self._sums_bytes = [], 0, 0

    def _merged(self) -> Iterator[Table]:
        """Yield tables in which every word has its whole count; no word is in two of them."""
        if not self._runs:
            yield join_counts(self._waiting)
            return
        if self._waiting:
            self._spill()
        rests = [_Run(path) for path in self._runs]
        while rests := [rest for rest in rests if rest.fill()]:
            # Up to here every run has been read, so that no more of these words can come.
            bound = min(rest.last_word for rest in rests)
            yield join_counts([rest.take(bound) for rest in rests])


class _Run:
    """A sorted run on disk, read batch by batch."""

    def __init__(self, path: Path) -> None:
        self._batches = iter(pyarrow.ipc.open_stream(pyarrow.memory_map(str(path))))
        self._rest: Table = None

    def fill(self) -> bool:
        """Read on if nothing is left of the last batch; tell whether there is something."""
        while self._rest is None or not self._rest.num_rows:
            batch = next(self._batches, None)
            if batch is None:
                return False
            self._rest = pyarrow.Table.from_batches([batch])
        return True

    @property
    def last_word(self) -> str:
        """The largest word that is read; Arrow and Python both order words by their code points."""
        return str(self._rest["word"][-1].as_py())

    def take(self, bound: str) -> Table:
        """Take the words up to a bound out of what is read."""
        num_rows = pyarrow.compute.sum(pyarrow.compute.less_equal(self._rest["word"], bound)).as_py()
        taken, self._rest = self._rest.slice(0, num_rows), self._rest.slice(num_rows)
        return taken


def join_counts(tables: Sequence[Table]) -> Table:
    """Add up the counts of equal words in tables of words and counts."""
    if not tables:
        return pyarrow.table({"word": pyarrow.array([], pyarrow.string()), "count": pyarrow.array([], pyarrow.int64())})
    joined = pyarrow.concat_tables(tables).group_by("word", use_threads=False).aggregate([("count", "sum")])
    return joined.select(["word", "count_sum"]).rename_columns(["word", "count"])


def _top(table: Table, limit: int | None) -> Table:
    ordered = table.sort_by([("count", "descending"), ("word", "ascending")])
    return ordered if limit is None else ordered.slice(0, limit).combine_chunks()
