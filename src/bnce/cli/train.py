"""`bnce train`: a recipe and a corpus in, a run directory out."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnce.cli.completion import complete, complete_recipe, complete_setting
from bnce.cli.console import JsonOption, ThreadsOption, open_corpus, print_json, stderr, stdout
from bnce.cli.display import Display
from bnce.cli.options import DeviceOption
from bnce.errors import DiskFullError, UserError
from bnce.kinds.bodies import BODIES
from bnce.kinds.losses import LOSSES
from bnce.kinds.optimisers import OPTIMISERS
from bnce.machine.stopping import Stopped

if TYPE_CHECKING:
    from bnce.config import RunConfig
    from bnce.corpus.store import Corpus
    from bnce.runs.directory import RunDirectory
    from bnce.training.run import Start


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="small: 1 to 20 million words, on a CPU. wiki, news: more text on a GPU, with the paper's smaller and "
            "larger models. demo: takes minutes on a CPU and has its own text. ltcb, obwb: the paper's settings. Or a "
            "TOML file.",
            show_default="by the size of the corpus",
            autocompletion=complete_recipe,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Network: {BODIES.help}.",
            show_default="the recipe's",
            autocompletion=complete(*BODIES.names),
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Loss: {LOSSES.help}.",
            show_default="the recipe's",
            autocompletion=complete(*LOSSES.names),
        ),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Corpus directory from 'bnce prepare'. With --resume: its new location, if it was moved.",
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Start from the weights of this run, to adapt it to other text or to train it longer. The network "
            "stays "
            "the same; words that are also in the corpus keep their weights.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Run directory to create.", show_default="runs/RECIPE-MODEL-LOSS"
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting, such as training.epochs=3. With --resume, only rates, epochs, evaluation and "
            f"checkpoint settings can change. May be given several times. For optimiser.name: {OPTIMISERS.help}.",
            autocompletion=complete_setting,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run at --out, as if it had never stopped.")
    ] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
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
      bnce train wiki --corpus corpora/wiki --set optimiser.learning_rate=0.1 \\
          --set training.epochs=4 --out runs/slow
      bnce train --init runs/general --corpus corpora/medical --out runs/medical
      bnce train --out runs/relu-lstm --resume
      bnce train --out runs/relu-lstm --resume \\
          --set optimiser.learning_rate=0.05 --set training.epochs=6
    """
    from bnce.machine.devices import choose_device
    from bnce.runs.directory import RunDirectory, hold_run, read_summary
    from bnce.runs.resuming import refuse_begun, remove_unbegun, resume_command, resume_config
    from bnce.training.plan import choose_recipe, create_run
    from bnce.training.run import run_training

    if init is not None and resume:
        raise UserError("A resumed run continues from its own weights: leave out --init, or give another --out.")
    chosen = choose_device(device)
    source = None if init is None else RunDirectory.open(init)
    if source is not None:
        corpus = corpus or source.config.corpus
    reason = None
    if recipe is None and corpus is not None and not resume:
        recipe, reason = choose_recipe(open_corpus(corpus), chosen)
    wanted = None if recipe is None and resume else _plan(recipe, model, loss, corpus, settings or [], source)
    if wanted is not None:
        out = out or Path("runs") / f"{wanted.recipe}-{wanted.model.name}-{wanted.loss.name}"
    elif out is None:
        raise UserError("--resume needs the run to continue: give it as --out RUN.")
    elif model or loss:
        raise UserError("A resumed run keeps its model and its loss: leave out --model and --loss.")
    if resume:
        config = resume_config(out, settings or [], wanted)
        run = dataclasses.replace(RunDirectory.open(out), config=config)
    else:
        assert wanted is not None
        refuse_begun(out)
        config = wanted
    # A corpus that was moved is the same one to a run: that is checked by its words and their counts.
    opened = open_corpus(corpus or (wanted or config).corpus)
    start = _find_start(config, opened, out, source)
    if not resume:
        if (out / "config.toml").is_file():
            with hold_run(out):
                remove_unbegun(out)
        run = create_run(out, config, opened, chosen)
    show = Display(run.config, len(opened.split("train")))
    if reason is not None:
        show.noticed(reason)
    if start is not None:
        show.noticed(_describe_start(start))
    try:
        with hold_run(out), show.bar:
            summary = run_training(
                run,
                opened,
                chosen,
                show,
                resume=resume,
                command=shlex.join(["bnce", *sys.argv[1:]]),
                num_threads=threads,
                start=start,
            )
    except Stopped as stop:
        summary = read_summary(out)
        if as_json:
            print_json({"run": str(out), **summary})
        where = f"and saved at step {summary['step']}" if summary.get("step") else "before the first step"
        stderr.print(f"Stopped {where}. Continue with  {resume_command(out)}", markup=False)
        raise typer.Exit(stop.status) from None
    except DiskFullError as error:
        # Without --resume, the run that is there now would be refused.
        raise DiskFullError(error.what, error.remedy, f"continue with  {resume_command(out)}") from error
    record = {"run": str(out), "recipe": run.config.recipe, **summary, **_results(run)}
    if as_json:
        print_json(record)
    else:
        _print_results(record)


def _find_start(config: RunConfig, corpus: Corpus, out: Path, source: RunDirectory | None) -> Start | None:
    """Find the weights that a run starts from; one that was begun has them in its states."""
    from bnce.corpus.streams import training_streams
    from bnce.lexicon.start import start_from
    from bnce.runs.checkpoint import state_files
    from bnce.runs.directory import RunDirectory

    if not config.init or state_files(out):
        return None
    counts = training_streams(config.training, corpus).count_targets(len(corpus.vocabulary))
    return start_from(source or RunDirectory.open(config.init), corpus.vocabulary, counts, config.loss.name)


def _describe_start(start: Start) -> str:
    record = start.record
    return (
        f"Starting from '{record['run']}' (step {record['step']}): {record['num_words_kept']:,} words keep their rows, "
        f"{record['num_words_new']:,} are new, {record['num_words_dropped']:,} are dropped."
    )


def _plan(
    recipe: str | None,
    model: str | None,
    loss: str | None,
    corpus: str | None,
    settings: list[str],
    source: RunDirectory | None,
) -> RunConfig:
    """Resolve what was asked for."""
    from bnce.corpus.opening import corpus_setting
    from bnce.recipes.recipe import load_recipe, recipe_names

    if recipe is None:
        raise UserError(
            "Neither a recipe nor a corpus was given: give --corpus DIR, which 'bnce prepare' makes, and the recipe is "
            f"chosen by its size; or one of {', '.join(recipe_names())}."
        )
    if source is None:
        config = load_recipe(recipe, model=model, loss=loss, corpus=corpus, settings=settings)
    else:
        config = _start_config(recipe, model, loss, corpus, settings, source)
    if not config.corpus:
        raise UserError(
            f"The recipe '{recipe}' needs a corpus: make one with 'bnce prepare' and give it as --corpus DIR."
        )
    return dataclasses.replace(config, corpus=corpus_setting(config.corpus))


def _start_config(
    recipe: str, model: str | None, loss: str | None, corpus: str | None, settings: list[str], source: RunDirectory
) -> RunConfig:
    """Resolve a recipe for a run that starts from another, whose network it takes over."""
    from bnce.lexicon.start import check_same_network, inherited_settings
    from bnce.recipes.recipe import load_recipe

    config = load_recipe(
        recipe,
        model=model or source.config.model.name,
        loss=loss or source.config.loss.name,
        corpus=corpus,
        settings=[*inherited_settings(source.config), *settings],
    )
    check_same_network(config, source)
    return dataclasses.replace(config, init=str(source.path.resolve()))


def _results(run: Any) -> dict[str, Any]:
    import json

    from bnce.evaluation.detail import without_detail

    path = run.path / "evaluation.json"
    if path.is_file():
        return {"test": without_detail(json.loads(path.read_text(encoding="utf-8")))}
    return {}


def _print_results(record: dict[str, Any]) -> None:
    startup = f" after {record['startup_seconds']:.1f} s of start-up" if record["startup_seconds"] else ""
    stdout.print(
        f"{record['run']}: {record['tokens']:,} words in {record['train_seconds']:.1f} s of training{startup}, "
        f"{record['words_per_second']:,.0f} words/s on {record['device']}; {record['num_parameters']:,} parameters",
        markup=False,
    )
    if record["stopped_early"]:
        stdout.print(f"  ended early at step {record['step']}: the best validation was at step {record['best_step']}")
    if "test" in record:
        from bnce.cli.evaluate import describe

        describe(record["test"], "test")
