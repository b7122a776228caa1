"""TSV and CSV, record by record: what was read is written again byte for byte, with fields behind it.

CSV has quotes as RFC 4180 says: a field in quotes may hold separators, line ends and doubled quotes. In TSV a quote is
a letter like any other, unless the header begins with one.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bnce.errors import UserError
from bnce.files import atomic_file
from bnce.tables.columns import Block, find_column
from bnce.text.sources import MAX_LINE_BYTES, check_source, file_ending, named, read_chunks
from bnce.text.unpack import PACKED, PACKERS, open_packed

SEPARATORS = {"tsv": "\t", "csv": ","}
_QUOTED = re.compile(r'"([^"]*+(?:""[^"]*+)*+)"')
# A cell that only a writer of CSV makes: quotes around it, and every one inside doubled.
_LOOKS_QUOTED = re.compile(r'"(?=[^"]*"")[^"]*+(?:""[^"]*+)*+"')


class Record(NamedTuple):
    """A row as it stands in the file, its line end apart, and its fields; a blank line has None."""

    raw: str
    line_end: str
    fields: list[str] | None


class DelimitedFile:
    """An open table; `names` are those of its columns, and `records` its rows."""

    def __init__(self, path: str, form: str) -> None:
        check_source(path)
        self.name, self.separator = named(path), SEPARATORS[form]
        self._lines = _lines(read_chunks(path), self.name)
        first = next(self._lines, "")
        self.has_mark = first.startswith("\ufeff")
        first = first.removeprefix("\ufeff")
        self._quoted = form == "csv" or first.startswith('"')
        header = self._record(first, 0)
        if header.fields is None:
            raise UserError(f"{self.name} has no header: give a table whose first line has the names of its columns.")
        if "\r" in header.raw:
            raise UserError(f"{self.name} has lines that end in CR only: convert the line ends to LF.")
        self.header, self.names = header, header.fields

    def place(self, name: str) -> int:
        """Find a column by its name."""
        return find_column(self.names, name, self.name)

    def records(self) -> Iterator[Record]:
        """Read the rows; blank lines are none where there are several columns."""
        number = 0
        for line in self._lines:
            record = self._record(line, number + 1)
            if record.fields is None:
                yield record
                continue
            number += 1
            if len(record.fields) != len(self.names):
                raise UserError(
                    f"{self.name}, row {number} has {len(record.fields)} fields, but the header has {len(self.names)}: "
                    "fix the row."
                )
            yield record

    def word(self, record: Record, place: int, number: int) -> str:
        """Give the word of a row; one that looks quoted where quotes are letters is refused."""
        word = (record.fields or [""])[place]
        if not self._quoted and _LOOKS_QUOTED.fullmatch(word):
            raise UserError(
                f"{self.name}, row {number} has the word {word:.60}, which may be in quotes or have quotes: put the "
                "header in quotes, too, if the file has its cells in quotes; else write the table as Parquet."
            )
        return word

    def _record(self, line: str, number: int) -> Record:
        raw, line_end = _split_end(line)
        if not raw and (number == 0 or len(self.names) > 1):
            return Record(raw, line_end, None)
        if not self._quoted or '"' not in raw:
            return Record(raw, line_end, raw.split(self.separator))
        while (fields := self._fields(raw, number)) is None:
            # The quote is open: it can only close on a line with another one.
            more = ""
            for more in self._lines:
                raw, line_end = raw + line_end + more, ""
                if '"' in more or len(raw) > MAX_LINE_BYTES:
                    break
            if '"' not in more or len(raw) > MAX_LINE_BYTES:
                where = f"row {number}" if number else "the header"
                raise UserError(
                    f"{self.name}, {where} has a quote that is never closed: close it, or write the "
                    "table as TSV if quotes are part of words."
                )
            raw, line_end = _split_end(raw)
        return Record(raw, line_end, fields)

    def _fields(self, raw: str, number: int) -> list[str] | None:
        """Cut a record at separators outside quotes; None if a quote is open at its end."""
        fields, place = [], 0
        while True:
            if raw.startswith('"', place):
                found = _QUOTED.match(raw, place)
                if found is None:
                    return None
                end = found.end()
                fields.append(found[1].replace('""', '"'))
                if end < len(raw) and raw[end] != self.separator:
                    raise UserError(
                        f"{self.name}, row {number} has letters after a closing quote ({raw[place : end + 8]:.40}): "
                        "double the quotes inside a field, or write the table as TSV if quotes are part of words."
                    )
            else:
                end = raw.find(self.separator, place)
                end = len(raw) if end < 0 else end
                fields.append(raw[place:end])
            if end >= len(raw):
                return fields
            place = end + 1


def write_delimited(
    out: Path,
    separator: str,
    header: Sequence[Record],
    waiting: deque[Record],
    columns: Sequence[str],
    blocks: Iterable[Block],
) -> None:
    """Write the records that wait, each with its new fields; a blank line has none."""
    ending = file_ending(str(out))
    if ending in PACKED and ending not in PACKERS:
        raise UserError(f"The output's name ends in {ending}: tables are written plain, or as {', '.join(PACKERS)}.")
    with atomic_file(out) as partial, open_packed(partial, ending) as sink:

        def write(record: Record, added: str) -> None:
            sink.write(f"{record.raw}{added}{record.line_end}".encode())

        for record in header:
            write(record, "" if record.fields is None else "".join(separator + name for name in columns))
        for block in blocks:
            for values in zip(*(column.tolist() for column in block), strict=True):
                while waiting[0].fields is None:
                    write(waiting.popleft(), "")
                write(waiting.popleft(), "".join(f"{separator}{_format(value)}" for value in values))
        for record in waiting:
            write(record, "")


def _format(value: object) -> str:
    """Write a field; numbers have seven digits, which is what float32 has, and NaN is nothing."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return "" if value != value else f"{value + 0.0:.7g}"
    return str(value)


def _split_end(line: str) -> tuple[str, str]:
    for end in ("\r\n", "\n"):
        if line.endswith(end):
            return line[: -len(end)], end
    return line, ""


def _lines(chunks: Iterable[bytes], name: str) -> Iterator[str]:
    """Give the lines of a file with their ends; each is UTF-8."""
    for number, line in enumerate(_raw_lines(chunks, name), start=1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}, line {number} is not UTF-8 (byte 0x{line[error.start]:02x}): convert the table to UTF-8."
            ) from error


def _raw_lines(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    rest, number = b"", 0
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        number += len(whole)
        yield from (line + b"\n" for line in whole)
        if len(rest) > MAX_LINE_BYTES:
            raise UserError(
                f"{name}, line {number + 1} is longer than {MAX_LINE_BYTES // 2**20} MiB: give one word per row."
            )
    if rest:
        yield rest
