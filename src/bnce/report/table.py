"""The paper's table for a terminal and in Markdown."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bnce.report import numbers
from bnce.report.comparison import Comparison, Entry
from bnce.report.row import Row

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Column:
    """A column of the printed table: its heading, and its cell for a row."""

    heading: str
    cell: Callable[[Row], str]


def _ppl_n(row: Row) -> str:
    return "---" if row.ppl_n is None else numbers.perplexity(row.ppl_n)


# Most telling first: a narrow terminal leaves out the last ones.
COLUMNS = (
    Column("model (loss)", lambda row: row.shown),
    Column("PPLn", _ppl_n),
    Column("PPLf", lambda row: numbers.perplexity(row.ppl_f)),
    Column("TS (w/s)", lambda row: numbers.speed(row.words_per_second)),
    Column("NoP", lambda row: numbers.parameters(row.num_parameters)),
    Column("× softmax", lambda row: numbers.ratio(row.speedup_over_softmax)),
    Column("log Z", lambda row: numbers.spread(row.log_z_mean_nats, row.log_z_std_nats)),
    Column("epochs", lambda row: numbers.epochs(row.epochs)),
    Column("train time", lambda row: numbers.duration(row.train_seconds)),
)

BY_SENTENCE = Column("PPLf by sentence", lambda row: numbers.perplexity(row.ppl_f_by_sentence))


def columns_of(comparison: Comparison) -> tuple[Column, ...]:
    """Choose the columns. Where no run was measured sentence by sentence, there is no such column."""
    if not any(row.ppl_f_by_sentence is not None for row in comparison.rows):
        return COLUMNS
    return (*COLUMNS[:-2], BY_SENTENCE, *COLUMNS[-2:])


def grouped(entries: Sequence[Entry]) -> Iterator[tuple[list[Entry], bool]]:
    """Yield the entries model by model, and whether a new family of models begins with them."""
    family = None
    for model, group in itertools.groupby(entries, key=lambda entry: entry.model):
        yield list(group), family not in (None, model.family)
        family = model.family


def terminal_table(comparison: Comparison, num_columns: int | None = None) -> Table:
    """The table for a terminal, with its first `num_columns` columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=Text(comparison.title), title_justify="left", padding=(0, 1, 0, 0))
    columns = columns_of(comparison)[:num_columns]
    for index, column in enumerate(columns):
        table.add_column(column.heading, justify="right" if index else "left", no_wrap=True)
    for group, _ in grouped(comparison.entries):
        for entry in group:
            # Text, since a string would be read for [markup], and directories may be called anything.
            table.add_row(*(Text(column.cell(entry.row)) for column in columns))
        table.add_section()
    return table


def to_markdown(comparison: Comparison) -> str:
    """The table as GitHub reads it, with the conditions as a list below."""
    columns = columns_of(comparison)
    lines = [f"## {_escape_markdown(comparison.title)}", ""]
    lines.append("| " + " | ".join(column.heading for column in columns) + " |")
    lines.append("|---|" + "---:|" * (len(columns) - 1))
    for row in comparison.rows:
        lines.append("| " + " | ".join(_escape_markdown(column.cell(row)) for column in columns) + " |")
    lines += ["", *(f"- {_escape_markdown(statement)}" for statement in comparison.conditions.statements)]
    return "\n".join(lines) + "\n"


def _escape_markdown(plain: str) -> str:
    escaped = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", escaped)
