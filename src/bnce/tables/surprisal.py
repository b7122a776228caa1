"""Surprisal for a table in a file: the same table out, with columns added. Of plain text a table is made."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bnce import files
from bnce.errors import UserError, argument
from bnce.scoring.model import Model
from bnce.tables.columnar import BATCH_ROWS, ColumnarFile, in_batches, rows_of, write_columnar
from bnce.tables.columns import Block, Columns, Measuring, Row, Totals, check_columns, truth
from bnce.tables.delimited import SEPARATORS, DelimitedFile, Record, write_delimited
from bnce.tables.measure import Measurer
from bnce.tables.readers import Check, open_reader
from bnce.text.sources import file_ending, read_lines
from bnce.text.unpack import PACKED

TEXT = "text"
FORMATS = {
    "tsv": (".tsv", ".tab"),
    "csv": (".csv",),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather", ".ipc", ".arrows"),
    TEXT: (".txt",),
}
COLUMNAR = ("parquet", "arrow")
TEXT_COLUMNS = ("text", "line", "word")  # of the table that is made of plain text

Progress = Callable[[int], object]


@dataclass(frozen=True)
class Result:
    """What was done to a table of a format."""

    form: str
    totals: Totals
    check: Check | None


def add_surprisal(
    model: Model,
    table: str,
    out: str | Path,
    columns: Columns,
    measuring: Measuring,
    progress: Progress,
) -> Result:
    """Write a table again with the columns of `measuring`; the output appears when it is whole."""
    out = Path(out)
    form = find_format(table)
    out_form = find_format(str(out), default="tsv" if form == TEXT else form)
    if out_form == TEXT or form not in (out_form, TEXT):
        hint = "of the same format" if form != TEXT else "that ends in .tsv, .csv, .parquet or .arrow"
        raise UserError(f"The format of '{table}' is {form}, and the output is '{out}': give an output {hint}.")
    files.check_place(out)
    if form == TEXT and columns != Columns():
        raise UserError(
            f"'{table}' is plain text, which has no columns: leave out {argument('word')}, {argument('text')}, "
            f"{argument('sentence')} and {argument('glued')}; a blank line separates texts."
        )
    measurer = Measurer(model, measuring, open_reader(model, measuring), split=columns.sentence is None)

    def measured(rows: Iterator[Row]) -> Iterator[Block]:
        for block in measurer.measure(rows):
            yield block
            progress(measurer.totals.num_rows)

    if form == TEXT:
        _add_to_text(table, out, out_form, measuring, measured)
    elif form in SEPARATORS:
        _add_to_delimited(DelimitedFile(table, form), out, columns, measuring, measured)
    else:
        _add_to_columnar(ColumnarFile(table, form), out, columns, measuring, measured)
    return Result(form, measurer.totals, measurer.reader.check())


Measure = Callable[[Iterator[Row]], Iterator[Block]]


def find_format(path: str, default: str | None = None) -> str:
    """Tell the format of a table by the ending of its name."""
    ending = file_ending(path)
    if ending in PACKED:
        ending = file_ending(os.path.splitext(path)[0])
    for name, endings in FORMATS.items():
        if ending in endings:
            return name
    if default is not None:
        return default
    known = ", ".join(ending for endings in FORMATS.values() for ending in endings)
    raise UserError(f"The name of the table '{path}' does not tell its format: give a name that ends in {known}.")


def _add_to_delimited(
    table: DelimitedFile, out: Path, columns: Columns, measuring: Measuring, measured: Measure
) -> None:
    check_columns(table.names, columns, measuring, table.name)
    word = table.place(columns.word)
    texts = [table.place(name) for name in columns.text]
    sentence = None if columns.sentence is None else table.place(columns.sentence)
    glued = None if columns.glued is None else table.place(columns.glued)
    waiting: deque[Record] = deque()

    def rows() -> Iterator[Row]:
        number = 0
        for record in table.records():
            waiting.append(record)
            if record.fields is None:
                continue
            number += 1
            fields = record.fields
            key = None if sentence is None else fields[sentence]
            is_glued = glued is not None and truth(fields[glued], number, table.name)
            yield Row(table.word(record, word, number), tuple([fields[place] for place in texts]), key, is_glued)

    header = [Record("\ufeff" if table.has_mark else "", "", None), table.header]
    write_delimited(out, table.separator, header, waiting, list(measuring.columns), measured(rows()))


def _add_to_columnar(table: ColumnarFile, out: Path, columns: Columns, measuring: Measuring, measured: Measure) -> None:
    check_columns(table.names, columns, measuring, table.name)
    waiting: deque[Any] = deque()

    def rows() -> Iterator[Row]:
        for batch in table.batches():
            waiting.append(batch)
            yield from rows_of(batch, table.name, columns)

    parts = in_batches(waiting, measured(rows()))
    write_columnar(out, table.form, table.schema, measuring.columns, parts, table.compression)


def _add_to_text(path: str, out: Path, form: str, measuring: Measuring, measured: Measure) -> None:
    if form in SEPARATORS:
        separator = SEPARATORS[form]
        waiting: deque[Record] = deque()

        def rows() -> Iterator[Row]:
            for row in _read_text(path):
                word = row.word
                if separator == "," and any(sign in word for sign in ',"'):
                    word = '"' + word.replace('"', '""') + '"'
                fields = [str(row.text), str(row.sentence), word]
                waiting.append(Record(separator.join(fields), "\n", fields))
                yield row

        header = [Record(separator.join(TEXT_COLUMNS), "\n", list(TEXT_COLUMNS))]
        write_delimited(out, separator, header, waiting, list(measuring.columns), measured(rows()))
        return
    import pyarrow

    kinds = (pyarrow.int64(), pyarrow.int64(), pyarrow.string())
    schema = pyarrow.schema(list(zip(TEXT_COLUMNS, kinds, strict=True)))
    batches: deque[Any] = deque()

    def rows_in_batches() -> Iterator[Row]:
        words = _read_text(path)
        while some := list(itertools.islice(words, BATCH_ROWS)):
            records = [dict(zip(TEXT_COLUMNS, (row.text, row.sentence, row.word), strict=True)) for row in some]
            batches.append(pyarrow.RecordBatch.from_pylist(records, schema=schema))
            yield from some

    write_columnar(out, form, schema, measuring.columns, in_batches(batches, measured(rows_in_batches())))


def _read_text(path: str) -> Iterator[Row]:
    """Read the words of a text as rows: a blank line ends a text, and a line is a sentence; both count from 1."""
    text, is_blank = 0, True
    for number, line in enumerate(read_lines(path), start=1):
        words = line.split()
        if words and is_blank:
            text += 1
        is_blank = not words
        for word in words:
            yield Row(word, text, number)
