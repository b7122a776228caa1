"""The paper's table in every form it is wanted in: terminal, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bnce.kinds.losses import LOSSES
from bnce.report import numbers
from bnce.report.comparison import Comparison, Entry
from bnce.report.row import Row

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Column:
    """A column of the printed table: its heading, the heading in LaTeX, and its cell for a row."""

    heading: str
    latex: str
    cell: Callable[[Row], str]


def _ppl_n(row: Row) -> str:
    # A softmax has none, unless it was calibrated.
    has_one = LOSSES.find(row.loss).self_normalises or row.ppl_n is not None
    return numbers.perplexity(row.ppl_n) if has_one else "---"


# Most telling first: a narrow terminal leaves out the last ones.
COLUMNS = (
    Column("model (loss)", "", lambda row: row.shown),
    Column("PPLn", "PPL$^n$", _ppl_n),
    Column("PPLf", "PPL$^f$", lambda row: numbers.perplexity(row.ppl_f)),
    Column("TS (w/s)", "TS (w/s)", lambda row: numbers.speed(row.words_per_second)),
    Column("NoP", "NoP", lambda row: numbers.parameters(row.num_parameters)),
    Column("× softmax", r"$\times$ \textit{softmax}", lambda row: numbers.ratio(row.speedup_over_softmax)),
    Column("log Z", r"$\log Z$", lambda row: numbers.spread(row.log_z_mean_nats, row.log_z_std_nats)),
    Column("epochs", "epochs", lambda row: numbers.epochs(row.epochs)),
    Column("train time", "train time", lambda row: numbers.duration(row.train_seconds)),
)

BY_SENTENCE = Column("PPLf by sentence", r"PPL$^f$ by sentence", lambda row: numbers.perplexity(row.ppl_f_by_sentence))


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


def to_latex(comparison: Comparison) -> str:
    """A complete tabular in the form of the paper's Table 2, with the conditions in small print below."""
    columns = columns_of(comparison)
    lines = [
        f"% {comparison.title}",
        r"\begin{tabular}{| c ||" + " c |" * (len(columns) - 1) + "}",
        r"  \hline",
        "  " + " & ".join(column.latex for column in columns) + r" \\",
        r"  \hline",
    ]
    for group, begins_family in grouped(comparison.entries):
        if begins_family:
            lines.append(r"  \hline")
        for entry in group:
            cells = [_escape_latex(column.cell(entry.row)) for column in columns]
            cells[0] = cells[0].replace("(softmax)", r"(\textit{softmax})", 1)
            lines.append("  " + " & ".join(cells) + r" \\")
        lines.append(r"  \hline")
    lines += [r"\end{tabular}", r"\par\smallskip", r"{\footnotesize"]
    lines += [f"  {_escape_latex(statement)}" for statement in comparison.conditions.statements]
    lines.append(r"\par}")
    return "\n".join(lines) + "\n"


def to_csv(comparison: Comparison) -> str:
    """Raw numbers, one line per run; the conditions are columns, since CSV has no place below the table."""
    written = io.StringIO()
    writer = csv.DictWriter(written, [field.name for field in dataclasses.fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(dataclasses.asdict(row) for row in comparison.rows)
    return written.getvalue()


def to_json(comparison: Comparison) -> str:
    """Raw numbers and conditions as one JSON object."""
    return json.dumps(comparison.as_record(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "†": r"$^\dagger$",
    "—": "---",
    **{character: f"\\{character}" for character in "{}$&#%_"},
}


def _escape_latex(plain: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in plain)
    return re.sub(r"\bPPL([nf])\b", r"PPL$^\1$", escaped)


def _escape_markdown(plain: str) -> str:
    escaped = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", escaped)
