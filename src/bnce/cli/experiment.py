"""`bnce experiment`: a table of the paper, or the demo, from a corpus to the page with its plots."""

from __future__ import annotations

import functools
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from bnce.cli.compare import publish
from bnce.cli.completion import complete, complete_list, complete_recipe
from bnce.cli.console import JsonOption, open_corpus, print_json, stderr, stdout
from bnce.cli.options import DeviceOption, SettingsOption, option
from bnce.errors import UserError, unknown_name
from bnce.machine.signals import Stopped
from bnce.registry import LOSSES, MODELS

if TYPE_CHECKING:
    from bnce.settings import RunConfig
    from bnce.training.paper_tables import Outcome, PlannedRow

WRITER, PROMPT, NUM_SENTENCES, TEMPERATURE = "relu-lstm-bnce", "this function", 5, 0.7  # of the demo's sentences
FAILED = 1  # the status where rows diverged or did not fit, and the others were trained


def experiment(
    table: Annotated[
        str,
        typer.Argument(
            metavar="ltcb|obwb|demo",
            help="ltcb: the paper's Table 2. obwb: Table 4. demo: three small models, in 3 minutes on two CPU cores.",
            autocompletion=complete("ltcb", "obwb", "demo"),
        ),
    ],
    corpus: Annotated[
        str | None,
        option(
            "DIR",
            "Corpus directory from 'bnce prepare'.",
            show_default="for demo, the docstrings of the installed Python packages",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        option(
            "DIR",
            "Directory for runs and report. The same command continues the experiment.",
            "--out",
            "-o",
            show_default="the name of the table",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        option(
            "RECIPE",
            "Recipe to train the rows with.",
            "--recipe",
            show_default="wiki for ltcb, news for obwb, demo for demo",
            autocompletion=complete_recipe,
        ),
    ] = None,
    rows: Annotated[
        str,
        option(
            "NAME,...",
            "Train only these rows: models, losses, or single rows, such as rnn-bnce.",
            autocompletion=complete_list(*MODELS, *LOSSES),
            show_default="all",
        ),
    ] = "",
    settings: SettingsOption = None,
    keep_models: Annotated[bool, typer.Option(help="Keep the models of finished rows, or only their results.")] = True,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Train every row of a table, and write the table.

    Each row is evaluated on the test split; table, plots and report are written at the end. The same command continues
    an experiment: finished rows are skipped, stopped rows are resumed. Rows that diverge are named at the end.

    'demo' is a small version of the paper's comparison: a ReLu-LSTM on 400,000 tokens, with softmax, shared NCE (S-NCE)
    and batch NCE (B-NCE). At the end, the B-NCE model makes up some sentences.

    \b
    Examples:
      bnce experiment demo
      bnce experiment ltcb --corpus corpora/wiki --out experiments/ltcb
      bnce experiment ltcb --corpus corpora/wiki --recipe ltcb \\
          --rows rnn,relu-lstm --out experiments/sgd
    """
    from bnce.cli.display import shown_training
    from bnce.corpus.manifest import SPLITS
    from bnce.corpus.opening import corpus_setting
    from bnce.machine.devices import choose_device
    from bnce.machine.packages import need
    from bnce.recipes import load_recipe
    from bnce.runs.directory import Run, is_finished
    from bnce.runs.resuming import check_same_texts
    from bnce.training.paper_tables import RECIPES, find_outcome, table_rows, train_rows

    need("matplotlib", "The report of an experiment")
    every, out = table_rows(table), out or Path(table)
    wanted = _chosen(every, rows)
    chosen = choose_device(device)
    given = ["training.max_test_tokens=0", *(settings or [])]  # a table's figures are of the whole test

    def make_config(row: PlannedRow) -> RunConfig:
        name = recipe or RECIPES[table]
        config = load_recipe(name, model=row.model, loss=row.loss, corpus=corpus, settings=given, of_several=True)
        if not config.corpus:
            raise UserError(
                f"The recipe '{name}' needs a corpus: make one with 'bnce prepare' and give it as --corpus DIR."
            )
        return msgspec.structs.replace(config, corpus=corpus_setting(config.corpus))

    opened = open_corpus(make_config(wanted[0]).corpus)
    for row in every:  # also of those that are not trained now: the report has all
        if (out / row.name / "config.toml").is_file():
            check_same_texts(Run.open(out / row.name), opened, SPLITS)
    try:
        outcome = train_rows(
            wanted,
            out,
            make_config,
            opened,
            chosen,
            functools.partial(shown_training, opened),
            command=shlex.join(["bnce", *sys.argv[1:]]),
            keep_models=keep_models,
        )
    except Stopped as stop:
        # The report, with its plots, would take longer than somebody who stops a command wants to wait.
        _tell(find_outcome(wanted, out), as_json)
        raise typer.Exit(stop.status) from None
    _report(every, out, outcome, as_json)
    if table == "demo" and is_finished(out / WRITER) and not as_json:
        _print_sentences(out / WRITER, device)
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


def _print_sentences(run: Path, device: str) -> None:
    from bnce.engine.sampling import Sampling
    from bnce.scoring.loading import load

    stdout.print("\nSentences that the B-NCE model makes up:")
    for sentence in load(run, device).generate(PROMPT, NUM_SENTENCES, sampling=Sampling(TEMPERATURE)):
        stdout.print(sentence)


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
