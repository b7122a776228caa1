"""Surprisal for a table in a file: the same table out, with columns added."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bnce import files
from bnce.errors import UserError, argument, unknown_name
from bnce.scoring.batches import Check
from bnce.scoring.model import Model, Reader
from bnce.scoring.run_model import RunModel
from bnce.tables.delimited import DelimitedFile, Record, format_fields, open_packed
from bnce.tables.measure import Measurer, Measuring, Row, Totals
from bnce.text.sources import file_ending
from bnce.text.unpack import PACKED

FORMATS = {"tsv": (".tsv", ".tab"), "csv": (".csv",)}
NUM_CHECKED = 1000

Progress = Callable[[int], object]


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are what."""

    word: str = "word"
    text: Sequence[str] = ()
    sentence: str | None = None


@dataclass(frozen=True)
class Result:
    """What was done to a table."""

    totals: Totals
    check: Check | None


def add_surprisal(
    model: Model,
    table: str,
    out: str | Path,
    columns: Columns,
    measuring: Measuring,
    *,
    form: str = "auto",
    quotes: str = "auto",
    progress: Progress | None = None,
) -> Result:
    """Write a table again with the columns of `measuring`; the output appears when it is whole."""
    out = Path(out)
    form = find_format(table, form)
    if find_format(str(out), "auto", default=form) != form:
        raise UserError(f"The table is {form}, but the output is '{out}': give an output of the same format.")
    files.check_place(out)
    measurer = Measurer(model, measuring, open_reader(model, measuring), split=columns.sentence is None)
    _add_to_delimited(DelimitedFile(table, form, quotes), out, columns, measurer, progress)
    return Result(measurer.totals, measurer.reader.check())


def open_reader(model: Model, measuring: Measuring) -> Reader:
    """Open a model for a text; with the constant Z it is compared with the softmax, if it is a run."""
    carry = measuring.context == "text"
    if measuring.normalised:
        return model.reader(normalised=True, carry=carry, spell=measuring.spell)
    if not model.has_constant:
        raise UserError(
            f"'{model.name}' is an n-gram model, whose probabilities are normalised: leave out "
            f"{argument('unnormalised')}."
        )
    if not model.self_normalised:
        raise UserError(
            f"'{model.name}' was trained with a loss without a constant Z, so all its probabilities are normalised: "
            f"leave out {argument('unnormalised')}."
        )
    if isinstance(model, RunModel):
        return model.reader(carry=carry, spell=measuring.spell, num_checked=NUM_CHECKED)
    return model.reader(carry=carry, spell=measuring.spell)


def find_format(path: str, form: str, default: str | None = None) -> str:
    """Tell the format of a table by what is said of it, or by the ending of its name."""
    if form != "auto":
        if form not in FORMATS:
            raise unknown_name(f"value of {argument('form')}", form, ("auto", *FORMATS))
        return form
    ending = file_ending(path)
    if ending in PACKED:
        ending = file_ending(os.path.splitext(path)[0])
    for name, endings in FORMATS.items():
        if ending in endings:
            return name
    if default is not None:
        return default
    known = ", ".join(ending for endings in FORMATS.values() for ending in endings)
    raise UserError(
        f"The name of the table '{path}' does not tell its format: give a name that ends in {known}, or "
        f"{argument('form')}."
    )


def refuse_taken(names: Sequence[str], measuring: Measuring, table: str) -> None:
    """Refuse to add a column that is there already."""
    for name in measuring.columns:
        if name in names:
            raise UserError(
                f"{table} already has a column '{name}': remove it, or give other names with {argument('prefix')}."
            )


def _add_to_delimited(
    table: DelimitedFile, out: Path, columns: Columns, measurer: Measurer, progress: Progress | None
) -> None:
    word = table.place(columns.word)
    texts = [table.place(name) for name in columns.text]
    sentence = None if columns.sentence is None else table.place(columns.sentence)
    refuse_taken(table.names, measurer.measuring, table.name)
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
            yield Row(table.word(record, word, number), tuple([fields[place] for place in texts]), key)

    separator = table.separator
    with files.atomic_file(out) as partial, open_packed(partial) as sink:

        def write(record: Record, added: str) -> None:
            sink.write(f"{record.raw}{added}{record.line_end}".encode())

        sink.write(b"\xef\xbb\xbf" if table.has_mark else b"")
        write(table.header, "".join(separator + name for name in measurer.measuring.columns))
        for block in measurer.measure(rows()):
            for values in zip(*(column.tolist() for column in block), strict=True):
                while waiting[0].fields is None:
                    write(waiting.popleft(), "")
                write(waiting.popleft(), format_fields(values, separator))
            if progress is not None:
                progress(measurer.totals.num_rows)
        for record in waiting:
            write(record, "")
