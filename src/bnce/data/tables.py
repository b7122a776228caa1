"""Tables of words: TSV and CSV, Parquet and Arrow files, plain text, and whatever gives its columns in memory.

A table gives its columns as lists and takes new ones behind them. What was there stays: the bytes of a row of text, the
columns of the others. In TSV a quote is a letter like any other, unless the header begins with one.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.errors import UserError, counted, shown
from bnce.files import atomic_file
from bnce.text.records import open_parquet, parquet_compression, whole_characters
from bnce.text.sources import check_source, file_ending, named, read_chunks, read_lines
from bnce.text.unpack import PACKERS, open_packed

FORMATS = {
    "tsv": (".tsv", ".tab"),
    "csv": (".csv",),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "text": (".txt",),
}
COLUMNAR = ("parquet", "arrow")

Columns = Mapping[str, NDArray[Any]]


def find_format(path: str) -> str | None:
    """Tell the format of a table by the ending of its name; None for a name that has none, such as /dev/stdout."""
    ending = file_ending(path)
    if ending in PACKERS:
        ending = file_ending(os.path.splitext(path)[0])
    for name, endings in FORMATS.items():
        if ending in endings:
            return name
    if not ending:
        return None
    known = ", ".join(ending for endings in FORMATS.values() for ending in endings)
    raise UserError(f"The name of the table '{path}' does not tell its format: give a name that ends in {known}.")


class Table:
    """A table; `name` is what messages call it, `names` are those of its columns, and `get` gives one of these."""

    def __init__(self, name: str, names: Sequence[str], get: Callable[[str], Any]) -> None:
        self.name, self.names, self._get = name, list(names), get

    def column(self, name: str) -> list[Any]:
        """Give a column; what is missing, as NaN is in pandas, is None."""
        if (number := self.names.count(name)) != 1:
            found = f"has {number} columns" if number else "has no column"
            listed = ", ".join(f"'{one!s:.40}'" for one in self.names[:20]) or "none"
            raise UserError(f"{self.name} {found} {name!r:.60}: its columns are {listed}; name one of them.")
        return as_list(self._get(name))

    def words(self, name: str) -> list[str]:
        """Give the column of words; an empty cell is an empty word."""
        cells = self.column(name)
        for number, cell in enumerate(cells, start=1):
            if not isinstance(cell, str | None):
                hint = "it must be text; name the column of words"
                raise UserError(f"{self.name}, row {number} has {cell!r:.60} as its word: {hint}.")
        return [whole_characters(cell or "") for cell in cells]


class TextTable(Table):
    """TSV or CSV: of each row what stands in the file, and its fields; a blank line has no fields."""

    def __init__(self, text: str, separator: str, name: str) -> None:
        self.name, self._separator = name, separator
        self._mark = "\ufeff" if text.startswith("\ufeff") else ""
        text = text.removeprefix("\ufeff")
        self._is_quoted = separator == "," or text.startswith('"')
        self._rows = list(self._records(io.StringIO(text, newline="\n")))
        names = self._rows[0][1] if self._rows else []
        if len(names) == 1:
            self._rows = [(raw, fields or [""]) for raw, fields in self._rows]
        filled = [fields for _, fields in self._rows[1:] if fields]
        for number, fields in enumerate(filled, start=1):
            if len(fields) != len(names):
                counts = f"{counted(len(fields), 'field')}, but the header has {len(names)}"
                raise UserError(f"{name}, row {number} has {counts}: fix the row.")
        super().__init__(name, names, lambda column: [fields[names.index(column)] for fields in filled])

    def _records(self, lines: Iterator[str]) -> Iterator[tuple[str, list[str]]]:
        taken: list[str] = []

        def take() -> Iterator[str]:
            for line in lines:
                taken.append(line)
                yield line

        quoting: Any = csv.QUOTE_MINIMAL if self._is_quoted else csv.QUOTE_NONE
        number = 0
        try:
            for fields in csv.reader(take(), delimiter=self._separator, quoting=quoting, strict=True):
                yield "".join(taken), fields
                number += bool(fields)
                taken.clear()
        except csv.Error as error:
            raise UserError(
                f"{self.name}, row {number} cannot be read ({error}): close every quote and double those inside a "
                "field, or write the table as TSV if quotes are part of words."
            ) from error

    def words(self, name: str) -> list[str]:
        """Give the column of words; those that look quoted where quotes are letters are refused."""
        words = super().words(name)
        for number, word in enumerate(words, start=1):
            if not self._is_quoted and word[:1] == word[-1:] == '"' and '""' in word[1:-1]:
                raise UserError(
                    f"{self.name}, row {number} has the word {word:.60}, which may be in quotes or have quotes: put "
                    "the header in quotes, too, if the file has its cells in quotes; else write the table as Parquet."
                )
        return words

    def write(self, out: Path, added: Columns) -> None:
        """Write the rows as they are, with new fields behind them."""
        cells = zip(*(map(_format, column.tolist()) for column in added.values()), strict=True)
        rows = itertools.chain([tuple(added)], cells)
        with atomic_file(out) as partial, open_packed(partial, file_ending(str(out))) as sink:
            sink.write(self._mark.encode())
            for raw, fields in self._rows:
                row, end = _cut_end(raw)
                behind = "".join(self._separator + cell for cell in next(rows)) if fields else ""
                sink.write(f"{row}{behind}{end}".encode())


class ArrowTable(Table):
    """A table of Arrow, or a Parquet or Arrow file."""

    def __init__(self, table: Any, name: str = "The table", compression: str | None = None) -> None:
        super().__init__(name, table.column_names, table.column)
        self._table, self._compression = table, compression  # of Parquet

    @classmethod
    def read(cls, path: str, form: str) -> ArrowTable:
        """Read a file."""
        import pyarrow

        if form == "parquet":
            with open_parquet(path) as file:
                return cls(file.read(), named(path), parquet_compression(file))
        try:
            return cls(pyarrow.ipc.open_file(pyarrow.memory_map(path)).read_all(), named(path))
        except (pyarrow.ArrowException, OSError) as error:
            reason = str(error).split("\n")[0].rstrip(".")
            raise UserError(f"{named(path)} is damaged or not an Arrow file ({reason}): write it again.") from error

    def with_columns(self, added: Columns) -> Any:
        """Give the table with columns behind it, in which NaN is null."""
        import pyarrow

        table = self._table
        for name, column in added.items():
            nulls = np.isnan(column) if column.dtype.kind == "f" else None
            table = table.append_column(name, pyarrow.array(column, mask=nulls))
        return table

    def write(self, out: Path, added: Columns) -> None:
        """Write the table in the form in which it was."""
        import pyarrow.parquet

        table = self.with_columns(added)
        with atomic_file(out) as partial:
            if self._compression is not None:
                pyarrow.parquet.write_table(table, str(partial), compression=self._compression)
                return
            with pyarrow.ipc.new_file(str(partial), table.schema) as writer:
                writer.write_table(table)


def read_table(path: str, form: str) -> TextTable | ArrowTable:
    """Read a table; of plain text a TSV is made, a row per word: a blank line ends a text."""
    check_source(path)
    if form in COLUMNAR:
        return ArrowTable.read(path, form)
    if form == "text":
        text, is_blank, rows = 0, True, ["text\tline\tword"]
        for number, line in enumerate(read_lines(path), start=1):
            words = line.split()
            text += bool(words and is_blank)
            is_blank = not words
            rows += [f"{text}\t{number}\t{word}" for word in words]
        return TextTable("\n".join([*rows, ""]), "\t", named(path))
    data = b"".join(read_chunks(path))
    try:
        return TextTable(data.decode(), "," if form == "csv" else "\t", named(path))
    except UnicodeDecodeError as error:
        where = f"{named(path)}, line {data[: error.start].count(10) + 1}"
        what = f"is not UTF-8 (byte 0x{data[error.start]:02x})"
        raise UserError(f"{where} {what}: convert the table to UTF-8.") from error


def as_list(values: Any) -> list[Any]:
    """Take any column as a list; what is missing, as NaN is in pandas, is None."""
    for method in ("to_pylist", "tolist"):
        if hasattr(values, method):
            values = getattr(values, method)()
            break
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise UserError(f"{shown(values)} is no column: give a list with one value per word.")
    return [None if type(value).__name__ == "NAType" or value != value else value for value in values]


def _cut_end(raw: str) -> tuple[str, str]:
    end = next((end for end in ("\r\n", "\n") if raw.endswith(end)), "")
    return raw.removesuffix(end), end


def _format(value: object) -> str:
    """Write a field; numbers have seven digits, which is what float32 has, and NaN is nothing."""
    if isinstance(value, float):
        return "" if value != value else f"{value + 0.0:.7g}"
    return str(value).lower()
