"""Tables of words: TSV and CSV, Parquet and Arrow, plain text, and those of pandas, polars, DuckDB and Arrow in memory.

A table gives its columns as lists and takes new ones behind them. What was there stays: the bytes of a row of text, the
columns of the others. In TSV a quote is a letter like any other, unless the header begins with one.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.errors import UserError, counted
from bnce.files import atomic_file
from bnce.text.records import open_parquet, parquet_compression
from bnce.text.sources import check_source, file_ending, named, read_chunks, read_lines
from bnce.text.unpack import PACKED, PACKERS, open_packed

TEXT = "text"
FORMATS = {
    "tsv": (".tsv", ".tab"),
    "csv": (".csv",),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather", ".ipc"),
    TEXT: (".txt",),
}
COLUMNAR = ("parquet", "arrow")
SEPARATORS = {"tsv": "\t", "csv": ","}
TEXT_COLUMNS = ("text", "line", "word")  # of the table that is made of plain text
# A cell that only a writer of CSV makes: quotes around it, and every one inside doubled.
_LOOKS_QUOTED = re.compile(r'"(?=[^"]*"")[^"]*+(?:""[^"]*+)*+"')

Columns = Mapping[str, NDArray[Any]]


def find_format(path: str) -> str | None:
    """Tell the format of a table by the ending of its name; None for a name that has none, such as /dev/stdout."""
    ending = file_ending(path)
    if ending in PACKED:
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
        self.name, self.names, self._get = name, names, get

    def column(self, name: str) -> list[Any]:
        """Give a column; what is missing, as NaN is in pandas, is None."""
        if (number := list(self.names).count(name)) != 1:
            found = f"has {number} columns" if number else "has no column"
            listed = ", ".join(f"'{one!s:.40}'" for one in list(self.names)[:20])
            raise UserError(f"{self.name} {found} {name!r:.60}: its columns are {listed}; name one of them.")
        return as_list(self._get(name))


class TextTable(Table):
    """TSV or CSV: of each row what stands in the file, its line end, and its fields; a blank line has no fields."""

    def __init__(self, text: str, form: str, name: str) -> None:
        self.name, self._separator = name, SEPARATORS[form]
        self._mark = "\ufeff" if text.startswith("\ufeff") else ""
        text = text.removeprefix("\ufeff")
        self._is_quoted = form == "csv" or text.startswith('"')
        self._rows = list(self._records(io.StringIO(text, newline="\n")))
        names = self._rows[0][2] if self._rows else []
        if not names or "\r" in self._rows[0][0]:
            raise UserError(f"{name} has no header: give a table whose first line, up to an LF, names its columns.")
        if len(names) == 1:
            self._rows = [(raw, end, fields or [""]) for raw, end, fields in self._rows]
        filled = [fields for _, _, fields in self._rows[1:] if fields]
        for number, fields in enumerate(filled, start=1):
            if len(fields) != len(names):
                counts = f"{counted(len(fields), 'field')}, but the header has {len(names)}"
                raise UserError(f"{name}, row {number} has {counts}: fix the row.")
        super().__init__(name, names, lambda column: [fields[names.index(column)] for fields in filled])

    def _records(self, lines: Iterator[str]) -> Iterator[tuple[str, str, list[str]]]:
        taken: list[str] = []

        def take() -> Iterator[str]:
            for line in lines:
                taken.append(line)
                yield line

        plain = ([] if line in ("\n", "\r\n") else _cut_end(line)[0].split(self._separator) for line in take())
        records = csv.reader(take(), delimiter=self._separator, strict=True) if self._is_quoted else plain
        number = 0
        try:
            for fields in records:
                yield *_cut_end("".join(taken)), fields
                number += bool(fields)
                taken.clear()
        except csv.Error as error:
            raise UserError(
                f"{self.name}, row {number} cannot be read ({error}): close every quote and double those inside a "
                "field, or write the table as TSV if quotes are part of words."
            ) from error

    def check_words(self, words: Sequence[str]) -> None:
        """Refuse words that look quoted where quotes are letters."""
        for number, word in enumerate(words, start=1):
            if not self._is_quoted and word.startswith('"') and _LOOKS_QUOTED.fullmatch(word):
                raise UserError(
                    f"{self.name}, row {number} has the word {word:.60}, which may be in quotes or have quotes: put "
                    "the header in quotes, too, if the file has its cells in quotes; else write the table as Parquet."
                )

    def write(self, out: Path, added: Columns) -> None:
        """Write the rows as they are, with new fields behind them."""
        ending = file_ending(str(out))
        if ending in PACKED and ending not in PACKERS:
            raise UserError(
                f"The output's name ends in {ending}: tables are written plain, or as {', '.join(PACKERS)}."
            )
        cells = zip(*(map(_format, column.tolist()) for column in added.values()), strict=True)
        rows = itertools.chain([tuple(added)], cells)
        with atomic_file(out) as partial, open_packed(partial, ending) as sink:
            sink.write(self._mark.encode())
            for raw, end, fields in self._rows:
                behind = "".join(self._separator + cell for cell in next(rows)) if fields else ""
                sink.write(f"{raw}{behind}{end}".encode())


class ArrowTable(Table):
    """A table of Arrow, or a Parquet or Arrow file; it is written in the same form."""

    def __init__(self, table: Any, name: str, form: str = "arrow", compression: str = "snappy") -> None:
        super().__init__(name, table.column_names, table.column)
        self.table, self._form, self._compression = table, form, compression

    @classmethod
    def read(cls, path: str, form: str) -> ArrowTable:
        """Read a file."""
        import pyarrow

        if form == "parquet":
            with open_parquet(path) as file:
                return cls(file.read(), named(path), form, parquet_compression(file))
        try:
            return cls(pyarrow.ipc.open_file(pyarrow.memory_map(path)).read_all(), named(path))
        except (pyarrow.ArrowException, OSError) as error:
            reason = str(error).split("\n")[0].rstrip(".")
            raise UserError(f"{named(path)} is damaged or not an Arrow file ({reason}): write it again.") from error

    def with_columns(self, added: Columns) -> Any:
        """Give the table with columns behind it, in which NaN is null."""
        table = self.table
        for name, column in arrow_columns(added).items():
            table = table.append_column(name, column)
        return table

    def write(self, out: Path, added: Columns) -> None:
        """Write the table in the form in which it was."""
        import pyarrow
        import pyarrow.parquet

        table = self.with_columns(added)
        with atomic_file(out) as partial:
            if self._form == "parquet":
                pyarrow.parquet.write_table(table, str(partial), compression=self._compression)
                return
            with pyarrow.ipc.new_file(str(partial), table.schema) as writer:
                writer.write_table(table)


class FrameTable(Table):
    """A DataFrame of pandas."""

    def __init__(self, frame: Any) -> None:
        super().__init__("The table", list(frame.columns), frame.__getitem__)
        self.frame = frame

    def with_columns(self, added: Columns) -> Any:
        """Give the frame with columns behind it."""
        return self.frame.assign(**added)


def as_table(words: Any) -> ArrowTable | FrameTable | None:
    """Take a table in memory by what it can do: neither pandas nor Arrow is imported for it."""
    if not hasattr(words, "columns"):
        return None
    if hasattr(words, "iloc"):
        return FrameTable(words)
    import pyarrow

    return ArrowTable(pyarrow.table(words), "The table")


def arrow_columns(added: Columns) -> dict[str, Any]:
    """Turn columns into Arrow's, in which NaN is null."""
    import pyarrow

    nulls = {name: np.isnan(column) if column.dtype.kind == "f" else None for name, column in added.items()}
    return {name: pyarrow.array(column, mask=nulls[name]) for name, column in added.items()}


def read_table(path: str, form: str, out_form: str) -> TextTable | ArrowTable:
    """Read a table; of plain text one is made, in the form of the output."""
    check_source(path)
    if form == TEXT:
        return _tabulate(path, out_form)
    if form not in SEPARATORS:
        return ArrowTable.read(path, form)
    data = b"".join(read_chunks(path))
    try:
        return TextTable(data.decode(), form, named(path))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{named(path)}, line {line} is not UTF-8 (byte 0x{data[error.start]:02x}): convert the table to UTF-8."
        ) from error


def _tabulate(path: str, form: str) -> TextTable | ArrowTable:
    """Make a table of plain text, a row per word: a blank line ends a text, and a line is a sentence."""
    text, is_blank = 0, True
    rows: list[tuple[int, int, str]] = []
    for number, line in enumerate(read_lines(path), start=1):
        words = line.split()
        text += bool(words and is_blank)
        is_blank = not words
        rows += [(text, number, word) for word in words]
    if form in SEPARATORS:
        made = io.StringIO(newline="")
        quoting: Any = csv.QUOTE_MINIMAL if form == "csv" else csv.QUOTE_NONE
        quote = '"' if form == "csv" else None
        writer = csv.writer(made, delimiter=SEPARATORS[form], lineterminator="\n", quoting=quoting, quotechar=quote)
        writer.writerows([TEXT_COLUMNS, *rows])
        return TextTable(made.getvalue(), form, named(path))
    import pyarrow

    columns = [pyarrow.array([row[place] for row in rows]) for place in range(len(TEXT_COLUMNS))]
    return ArrowTable(pyarrow.table(columns, names=TEXT_COLUMNS), named(path), form)


def as_list(values: Any) -> list[Any]:
    """Take any column as a list; what is missing, as NaN is in pandas, is None."""
    for method in ("to_pylist", "tolist"):
        if hasattr(values, method):
            values = getattr(values, method)()
            break
    if not isinstance(values, Iterable):
        raise UserError(f"The words are {values!r:.60}: give a list of strings.")
    return [None if value != value or type(value).__name__ == "NAType" else value for value in values]


def _cut_end(raw: str) -> tuple[str, str]:
    end = next((end for end in ("\r\n", "\n") if raw.endswith(end)), "")
    return raw.removesuffix(end), end


def _format(value: object) -> str:
    """Write a field; numbers have seven digits, which is what float32 has, and NaN is nothing."""
    if isinstance(value, float):
        return "" if value != value else f"{value + 0.0:.7g}"
    return str(value).lower()
