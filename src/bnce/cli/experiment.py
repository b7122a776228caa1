"""`bnce experiment`: a table of the paper, from a corpus to the page with its plots."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bnce.cli.compare import compare
from bnce.cli.console import JsonOption, stderr
from bnce.cli.train import STOPPED, Display, StopOnSignal
from bnce.errors import UserError, unknown_name

if TYPE_CHECKING:
    from bnce.config import RunConfig
    from bnce.experiment import Row
    from bnce.trainer import Observer


def experiment(
    table: Annotated[str, typer.Argument(metavar="ltcb|obwb", help="The paper's Table 2 or its Table 4.")],
    corpus: Annotated[str, typer.Option(help="A directory that 'bnce prepare' made.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where the runs and the report go; go on with it by the same command.")
    ],
    recipe: Annotated[
        str | None, typer.Option(help="What the rows are trained with.", show_default="wiki for ltcb, news for obwb")
    ] = None,
    models: Annotated[str, typer.Option(help="Comma-separated, or 'all'.")] = "all",
    losses: Annotated[str, typer.Option(help="Comma-separated, or 'all'.")] = "all",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of every row, such as training.epochs=1."),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(min=0.01, help="Minutes for all rows together, shared fairly.")
    ] = None,
    keep_models: Annotated[
        bool, typer.Option(help="Keep the models of finished rows, and not only their figures.")
    ] = True,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Train every row of a table, evaluate each on test, and write the table and the plots.

    Rows that are done are skipped and rows that were stopped go on, so the same command continues an experiment.

    [bold]Examples[/bold]

      bnce experiment ltcb --corpus corpora/wiki --out experiments/ltcb

      bnce experiment ltcb --corpus corpora/wiki --recipe ltcb --models rnn,relu-lstm --out experiments/sgd --budget 60
    """
    from bnce.experiment import RECIPES, run_experiment, table_rows
    from bnce.run_directory import choose_device
    from bnce.training_run import open_corpus

    rows = _chosen(table_rows(table), models, losses)
    chosen = choose_device(device)
    opened = open_corpus(corpus)

    def make_config(row: Row) -> RunConfig:
        from bnce.config import load_recipe

        config = load_recipe(recipe or RECIPES[table], model=row.model, loss=row.loss, settings=settings or [])
        return dataclasses.replace(config, corpus=str(Path(corpus).resolve()))

    @contextlib.contextmanager
    def watch(config: RunConfig) -> Iterator[Observer]:
        display = Display(config, len(opened.split("train")))
        with display.bar:
            yield display

    with StopOnSignal() as stop:
        finished = run_experiment(
            rows,
            out,
            make_config,
            opened,
            chosen,
            watch,
            budget_seconds=None if budget is None else 60.0 * budget,
            should_stop=stop,
            command=shlex.join(["bnce", *sys.argv[1:]]),
            keep_models=keep_models,
        )
        stopped = stop()
    measured = [out / row.name for row in rows if (out / row.name / "metrics.jsonl").is_file()]
    if measured:
        compare(measured, out / "report", None, None, as_json)
    if not finished:
        stderr.print("Not every row is done: the same command goes on.", markup=False)
    if stopped:
        raise typer.Exit(STOPPED)


def _chosen(rows: list[Row], models: str, losses: str) -> list[Row]:
    for text, kind in ((models, "model"), (losses, "loss")):
        allowed = list(dict.fromkeys(getattr(row, kind) for row in rows))
        for name in [] if text == "all" else text.split(","):
            if name.strip() not in allowed:
                raise unknown_name(f"{kind} of this table", name.strip(), allowed)
    wanted = [
        row
        for row in rows
        if (models == "all" or row.model in [name.strip() for name in models.split(",")])
        and (losses == "all" or row.loss in [name.strip() for name in losses.split(",")])
    ]
    if not wanted:
        raise UserError(f"The table has no row with models {models} and losses {losses}: choose others.")
    return wanted
