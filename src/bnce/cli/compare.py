"""`bnce compare`: the paper's table from run directories, and a page with plots."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnce.cli.completion import complete
from bnce.cli.console import JsonOption, print_json, stderr, stdout
from bnce.cli.options import option
from bnce.errors import UserError, unknown_name
from bnce.report.formats import FILES, FORMATS

if TYPE_CHECKING:
    from bnce.report.comparison import Comparison


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories from 'bnce train'.")],
    out: Annotated[Path | None, option("DIR", f"Also write {', '.join(FILES.values())} to DIR.")] = None,
    form: Annotated[
        str | None,
        option(
            "NAME",
            f"Output format: {', '.join(FORMATS)}.",
            "--format",
            show_default="table",
            autocompletion=complete(*FORMATS),
        ),
    ] = None,
    title: Annotated[str | None, option("TEXT", "Heading of the table.", show_default="the corpus")] = None,
    json: JsonOption = False,
) -> None:
    """Compare runs in one table, as the paper does.

    Columns: PPLn, PPLf, training speed, number of parameters, ln Z. Runs that were measured on different texts are
    marked, and a warning says so.

    \b
    Examples:
      bnce compare runs/*
      bnce compare runs/* --out report --title "LTCB, 80K words"
      bnce compare runs/rnn-softmax runs/rnn-bnce --format latex > table.tex
    """
    from bnce.report.comparison import compare_runs
    from bnce.report.runs import has_figures

    if form is not None and form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    if json and form not in (None, "json"):
        raise UserError(f"--json and --format {form} cannot be used together: leave out one of them.")

    # Of many, such as runs/*, some may not have come to their first evaluation, or were made by 'bnce vocab'.
    measured = [run for run in runs if has_figures(run) or not (run / "config.toml").is_file()]
    for run in runs if measured else []:
        if run not in measured:
            stderr.print(f"warning: '{run}' is left out because it has no results: run 'bnce evaluate --save' on it.")
    publish(compare_runs(measured or runs, title), out, form, json)


def publish(
    comparison: Comparison, out: Path | None, form: str | None, json: bool, beside: Mapping[str, Any] | None = None
) -> None:
    """Print a comparison in one form and write all of them; `beside` is what else belongs into the JSON object."""
    from bnce.report.formats import render, write_files

    for warning in comparison.conditions.warnings:
        stderr.print(f"warning: {warning}")
    if out is not None:
        written = write_files(comparison, out)
        stderr.print(f"Wrote {', '.join(path.name for path in written)} to {out}.")
    if json:
        print_json({**comparison.as_record(), **(beside or {})})
    elif form in (None, "table"):
        _print_table(comparison)
    else:
        sys.stdout.write(render(comparison, form))


def _print_table(comparison: Comparison) -> None:
    from rich.console import Console
    from rich.measure import Measurement

    from bnce.report.table import columns_of, terminal_table

    def natural_width(num_columns: int) -> int:
        unbounded = stdout.options.update_width(10_000)
        return Measurement.get(stdout, unbounded, terminal_table(comparison, num_columns)).maximum

    columns = columns_of(comparison)
    num_columns = len(columns)
    # A number cut in half misleads, a missing column does not. A pipe has no width to keep to.
    while stdout.is_terminal and num_columns > 3 and natural_width(num_columns) > stdout.width:
        num_columns -= 1
    fitting = Console(file=stdout.file, width=natural_width(num_columns), highlight=False, emoji=False)
    fitting.print(terminal_table(comparison, num_columns))
    for statement in comparison.conditions.statements:
        stdout.print(statement)
    if num_columns < len(columns):
        missing = ", ".join(column.heading for column in columns[num_columns:])
        stdout.print(f"Columns left out because the terminal is too narrow: {missing}; --format md shows all columns.")
