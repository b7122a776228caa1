"""`bnce train`: a recipe and a corpus in, a run directory out."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnce.cli.completion import complete, complete_recipe, complete_setting
from bnce.cli.console import JsonOption, open_corpus, print_json, stderr, stdout
from bnce.cli.options import DeviceOption, flag, option
from bnce.machine.signals import Stopped
from bnce.machine.threads import tell_place
from bnce.registry import LOSSES, MODELS, OPTIMISERS, names_with_help

if TYPE_CHECKING:
    from bnce.corpus.manifest import SplitStatistics


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="small: 1 to 20 million words, on a CPU. wiki, news: more text on a GPU, with the paper's smaller and "
            "larger models. transformer: a Transformer, on a GPU. demo: takes minutes on a CPU and has its own text. "
            "ltcb, obwb: the paper's settings. Or a TOML file.",
            show_default="by the size of the corpus",
            autocompletion=complete_recipe,
        ),
    ] = None,
    model: Annotated[
        str | None,
        option(
            "NAME",
            f"Network: {names_with_help(MODELS)}.",
            show_default="the recipe's",
            autocompletion=complete(*MODELS),
        ),
    ] = None,
    loss: Annotated[
        str | None,
        option(
            "NAME",
            f"Loss: {names_with_help(LOSSES)}. A chunk is training.num_steps words of every parallel stream of the "
            "text.",
            show_default="the recipe's",
            autocompletion=complete(*LOSSES),
        ),
    ] = None,
    corpus: Annotated[
        str | None,
        option("DIR", "Corpus directory from 'bnce prepare'. With --resume: its new location, if it was moved."),
    ] = None,
    init: Annotated[
        Path | None,
        option(
            "RUN",
            "Start from the weights of this run, to adapt it to other text or to train it longer. The network "
            "stays "
            "the same; words that are also in the corpus keep their weights.",
        ),
    ] = None,
    out: Annotated[
        Path | None, option("DIR", "Run directory to create.", "--out", "-o", show_default="runs/RECIPE-MODEL-LOSS")
    ] = None,
    settings: Annotated[
        list[str] | None,
        option(
            "KEY=VALUE",
            "Change a setting, such as training.epochs=3. With --resume, only rates, epochs, evaluation and "
            f"checkpoint settings can change. May be given several times. For optimiser.name: "
            f"{names_with_help(OPTIMISERS)}.",
            "--set",
            autocompletion=complete_setting,
        ),
    ] = None,
    resume: Annotated[bool, flag("--resume", "Continue the run at --out, as if it had never stopped.")] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Train a model and write it to a run directory.

    Ctrl-C saves the run and stops. --resume continues it.

    \b
    Examples:
      bnce train demo --loss bnce
      bnce train --corpus corpora/mine --out runs/mine
      bnce train wiki --corpus corpora/wiki --model relu-lstm --loss bnce \\
          --out runs/relu-lstm
      bnce train wiki --corpus corpora/wiki --set optimiser.learning_rate=0.01 \\
          --set training.epochs=4 --out runs/slow
      bnce train --init runs/general --corpus corpora/medical --out runs/medical
      torchrun --nproc-per-node 4 -m bnce train wiki --corpus corpora/wiki \\
          --set training.groups=4 --out runs/four
      bnce train --out runs/relu-lstm --resume
      bnce train --out runs/relu-lstm --resume \\
          --set optimiser.learning_rate=0.005 --set training.epochs=6
    """
    from bnce.api import Wanted, plan_training
    from bnce.cli.display import shown_training
    from bnce.runs.directory import read_summary
    from bnce.runs.resuming import resume_command

    wanted = Wanted(recipe, corpus, out, model, loss, settings or [], resume, init, device)
    plan = plan_training(wanted, open_corpus)
    before = read_summary(plan.run.path) if resume else {}
    try:
        if not plan.world.is_first:
            plan.train(None)
            return
        with shown_training(plan.corpus, plan.run.config) as show:
            record = plan.train(show, command=shlex.join(["bnce", *sys.argv[1:]]))
    except Stopped as stop:
        if not plan.world.is_first:  # the first one tells how it goes
            raise typer.Exit(stop.status) from None
        path = plan.run.path
        summary = read_summary(path)
        if as_json:
            print_json({"run": str(path), **summary})
        where = f"and saved at step {summary['step']}" if summary.get("step") else "before the first step"
        stderr.print(f"Stopped {where}. Continue with  {resume_command(path)}")
        raise typer.Exit(stop.status) from None
    if as_json:
        print_json(record)
    else:
        was_finished = before.get("status") == "finished" and before.get("step") == record["step"]
        _print_results(record, was_finished=was_finished)
        _tell_of_test(record, plan.corpus.statistics)


def _print_results(record: dict[str, Any], *, was_finished: bool) -> None:
    if was_finished:
        epochs = f"{record['epochs']:g} epoch{'' if record['epochs'] == 1 else 's'}"
        stdout.print(f"{record['run']} is already finished ({epochs}); nothing was trained.")
    else:
        _print_training(record)
    if record["stopped_early"]:
        stdout.print(f"  ended early at step {record['step']}: the best validation was at step {record['best_step']}")
    if "test" in record:
        from bnce.cli.evaluate import describe

        describe(record["test"], "test")


def _tell_of_test(record: dict[str, Any], statistics: Mapping[str, SplitStatistics]) -> None:
    """Say that the figures are of a part of the test text, and how to get those of all."""
    if "test" in record and record["test"]["num_tokens"] < statistics["test"].num_tokens:
        num_tokens, num_all = record["test"]["num_tokens"], statistics["test"].num_tokens
        stdout.print(
            f"  These are the first {num_tokens:,} of {num_all:,} tokens of test (training.max_test_tokens). For all "
            f"of them: bnce evaluate {shlex.quote(record['run'])} --split test"
        )


def _print_training(record: dict[str, Any]) -> None:
    startup = f" after {record['startup_seconds']:.1f} s of start-up" if record["startup_seconds"] else ""
    stdout.print(
        f"{record['run']}: {record['tokens']:,} words in {record['train_seconds']:.1f} s of training{startup}, "
        f"{record['words_per_second']:,.0f} words/s on "
        f"{tell_place(record['device'], record['processes'])}; {record['num_parameters']:,} parameters"
    )
