"""`bnce experiment`: a table of the paper, from a corpus to the page with its plots."""

from __future__ import annotations

import functools
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnce.cli.compare import publish
from bnce.cli.completion import complete, complete_list, complete_recipe
from bnce.cli.console import JsonOption, open_corpus, print_json, stderr
from bnce.cli.display import shown_training
from bnce.cli.options import DeviceOption, SettingsOption, option, row_config, warn_of_unused
from bnce.errors import unknown_name
from bnce.kinds.bodies import BODIES
from bnce.kinds.losses import LOSSES
from bnce.machine.stopping import Stopped

if TYPE_CHECKING:
    from bnce.config import RunConfig
    from bnce.training.experiment import Outcome, PlannedRow

# Those of the paper's tables, and ours beside them.
TABLE_MODELS = tuple(body.name for body in BODIES if body.tables)
TABLE_LOSSES = tuple(loss.name for loss in LOSSES if loss.tables)
FAILED = 1  # the status where rows diverged or did not fit, and the others were trained


def experiment(
    table: Annotated[
        str,
        typer.Argument(
            metavar="ltcb|obwb",
            help="ltcb: the paper's Table 2. obwb: Table 4.",
            autocompletion=complete("ltcb", "obwb"),
        ),
    ],
    corpus: Annotated[str, option("DIR", "Corpus directory from 'bnce prepare'.")],
    out: Annotated[
        Path, option("DIR", "Directory for runs and report. The same command continues the experiment.", "--out", "-o")
    ],
    recipe: Annotated[
        str | None,
        option(
            "RECIPE",
            "Recipe to train the rows with.",
            "--recipe",
            show_default="wiki for ltcb, news for obwb",
            autocompletion=complete_recipe,
        ),
    ] = None,
    rows: Annotated[
        str,
        option(
            "NAME,...",
            f"Train only these rows: models ({', '.join(TABLE_MODELS)}), losses ({', '.join(TABLE_LOSSES)}), or single "
            "rows, such as rnn-bnce.",
            autocompletion=complete_list(*TABLE_MODELS, *TABLE_LOSSES),
            show_default="all",
        ),
    ] = "",
    settings: SettingsOption = None,
    keep_models: Annotated[bool, typer.Option(help="Keep the models of finished rows, or only their results.")] = True,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Train every row of a table of the paper, and write the table.

    Each row is evaluated on the test split; table, plots and report are written at the end. The same command continues
    an experiment: finished rows are skipped, stopped rows are resumed. Rows that diverge are named at the end.

    \b
    Examples:
      bnce experiment ltcb --corpus corpora/wiki --out experiments/ltcb
      bnce experiment ltcb --corpus corpora/wiki --recipe ltcb \\
          --rows rnn,relu-lstm --out experiments/sgd
    """
    from bnce.machine.devices import choose_device
    from bnce.training.experiment import RECIPES, check_texts, find_outcome, table_rows, train_rows

    every = table_rows(table)
    wanted = _chosen(every, rows)
    chosen = choose_device(device)
    opened = open_corpus(corpus)
    check_texts([out / row.name for row in every], opened)  # also of those that are not trained now: the report has all

    def make_config(row: PlannedRow) -> RunConfig:
        return row_config(recipe or RECIPES[table], row, corpus, settings)

    warn_of_unused(settings, [row.model for row in wanted])
    failed: dict[str, str] = {}
    try:
        train_rows(
            wanted,
            out,
            make_config,
            opened,
            chosen,
            functools.partial(shown_training, opened),
            failed.__setitem__,
            command=shlex.join(["bnce", *sys.argv[1:]]),
            keep_models=keep_models,
        )
    except Stopped as stop:
        # The report, with its plots, would take longer than somebody who stops a command wants to wait.
        _tell(find_outcome(wanted, out), as_json)
        raise typer.Exit(stop.status) from None
    outcome = find_outcome(wanted, out, failed)
    _report(every, out, outcome, as_json)
    if outcome.failed:
        raise typer.Exit(FAILED)


def _report(rows: list[PlannedRow], out: Path, outcome: Outcome, as_json: bool) -> None:
    """Write the report of all rows with figures, whichever of them were asked for now, and say what has none."""
    from bnce.report.comparison import compare_runs
    from bnce.report.runs import has_figures

    measured = [out / row.name for row in rows if has_figures(out / row.name)]
    if measured:
        publish(compare_runs(measured), out / "report", as_json, _record(outcome))
    _tell(outcome, as_json and not measured)


def _record(outcome: Outcome) -> dict[str, Any]:
    return {"finished": outcome.finished, "waiting": list(outcome.waiting), "failed": dict(outcome.failed)}


def _tell(outcome: Outcome, as_json: bool) -> None:
    """Say what has no figures yet and why."""
    if as_json:
        print_json({"rows": [], **_record(outcome)})
    for name, why in outcome.failed.items():
        stderr.print(f"{name} failed: {why}")
    if outcome.waiting:
        waiting = ", ".join(outcome.waiting)
        stderr.print(f"Some rows are not finished; the same command continues them ({waiting}).")


def _chosen(rows: list[PlannedRow], text: str) -> list[PlannedRow]:
    if not text:
        return rows
    names = [name.strip() for name in text.split(",")]
    known = list(dict.fromkeys(name for row in rows for name in (row.model, row.loss, row.name)))
    for name in names:
        if name not in known:
            raise unknown_name("row of this table", name, known)
    return [row for row in rows if {row.model, row.loss, row.name} & {*names}]
