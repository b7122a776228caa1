"""`bnce compare`: the paper's table from run directories, and a page with plots."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnce.cli.console import JsonOption, print_json, stderr, stdout
from bnce.cli.options import choice, option
from bnce.errors import UserError, unknown_name

if TYPE_CHECKING:
    from bnce.report.comparison import Comparison


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories from 'bnce train'.")],
    out: Annotated[Path | None, option("DIR", "Also write report.html, table.md and table.json to DIR.")] = None,
    format: Annotated[str, choice("text|markdown", "Output format of the table.")] = "text",
    json: JsonOption = False,
) -> None:
    """Compare runs in one table, as the paper does.

    Columns: PPLn, PPLf, training speed, number of parameters, ln Z. Runs that were measured on different texts are
    marked, and a warning says so.

    \b
    Examples:
      bnce compare runs/*
      bnce compare runs/* --out report
      bnce compare runs/rnn-softmax runs/rnn-bnce --format markdown > table.md
    """
    from bnce.report.comparison import compare_runs
    from bnce.report.runs import has_figures

    if format not in ("text", "markdown"):
        raise unknown_name("format", format, ("text", "markdown"))
    if json and format != "text":
        raise UserError(f"--json and --format {format} cannot be used together: leave out one of them.")

    # Of many, such as runs/*, some may not have come to their first evaluation, or were made by 'bnce vocab'.
    measured = [run for run in runs if has_figures(run) or not (run / "config.toml").is_file()]
    for run in runs if measured else []:
        if run not in measured:
            stderr.print(f"warning: '{run}' is left out because it has no results: run 'bnce evaluate --save' on it.")
    publish(compare_runs(measured or runs), out, json, format=format)


def publish(
    comparison: Comparison,
    out: Path | None,
    json: bool,
    beside: Mapping[str, Any] | None = None,
    *,
    format: str = "text",
) -> None:
    """Print a comparison and write its report; `beside` is what else belongs into the JSON object."""
    from bnce.report.table import to_markdown

    for warning in comparison.conditions.warnings:
        stderr.print(f"warning: {warning}")
    if out is not None:
        # Here and not above: matplotlib takes a second to load, and only the page needs it.
        from bnce.report.page import write_report

        write_report(comparison, out)
        stderr.print(f"Wrote report.html, table.md and table.json to {out}.")
    if json:
        print_json({**comparison.as_record(), **(beside or {})})
    elif format == "text":
        _print_table(comparison)
    else:
        sys.stdout.write(to_markdown(comparison))


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
        stdout.print(
            f"Columns left out because the terminal is too narrow: {missing}; --format markdown shows all columns."
        )
