"""`bnce train`: a recipe and a corpus in, a run directory out."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnce.cli.completion import complete, complete_recipe, complete_setting
from bnce.cli.console import JsonOption, ThreadsOption, print_json, progress_bar, stderr, stdout
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
    from bnce.runs.directory import RunDirectory, hold_run, read_summary, remove_unbegun
    from bnce.runs.resuming import resume_command
    from bnce.training.run import choose_recipe, create_run, run_training

    if init is not None and resume:
        raise UserError("A resumed run continues from its own weights: leave out --init, or give another --out.")
    chosen = choose_device(device)
    source = None if init is None else RunDirectory.open(init)
    if source is not None:
        corpus = corpus or source.config.corpus
    reason = None
    if recipe is None and corpus is not None and not resume:
        recipe, reason = choose_recipe(_open_corpus(corpus), chosen)
    out, config = _plan(recipe, model, loss, corpus, settings or [], out, resume, source)
    opened = _open_corpus(config.corpus)
    start = _find_start(config, opened, out, source)
    if resume:
        run = RunDirectory.open(out)
        # A corpus that was moved is the same one to the run.
        run = dataclasses.replace(run, config=dataclasses.replace(config, corpus=run.config.corpus))
    else:
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


def _open_corpus(name: str) -> Corpus:
    from bnce.training.run import open_corpus

    with progress_bar() as bar:
        task = bar.add_task("preparing docstrings", total=None)
        return open_corpus(name, lambda done, total: bar.update(task, completed=done, total=total))


def _find_start(config: RunConfig, corpus: Corpus, out: Path, source: RunDirectory | None) -> Start | None:
    """Find the weights that a run starts from; one that was begun has them in its states."""
    from bnce.lexicon.start import start_from
    from bnce.runs.checkpoint import state_files
    from bnce.runs.directory import RunDirectory, training_streams

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
    out: Path | None,
    resume: bool,
    source: RunDirectory | None,
) -> tuple[Path, RunConfig]:
    """Say where the run is and what it does; a resumed run changes the settings that may change, and no others."""
    from bnce.config import change_settings, read_config
    from bnce.recipes.recipe import load_recipe, recipe_names
    from bnce.runs.directory import is_begun
    from bnce.runs.resuming import check_changes, describe_differences, find_differences, resume_command
    from bnce.training.run import corpus_setting

    if recipe is None and resume:
        if out is None:
            raise UserError("--resume needs the run to continue: give it as --out RUN.")
        if model or loss:
            raise UserError("A resumed run keeps its model and its loss: leave out --model and --loss.")
        _require_run(out)
        before = read_config(out / "config.toml")
        config = change_settings(before, settings)
        check_changes(before, config, out)
        # Only where the text is: that it is the same text is checked by its words and their counts.
        return out, dataclasses.replace(config, corpus=corpus_setting(corpus)) if corpus else config
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
    config = dataclasses.replace(config, corpus=corpus_setting(config.corpus))
    out = out or Path("runs") / f"{config.recipe}-{config.model.name}-{config.loss.name}"
    if not resume:
        if is_begun(out):
            raise UserError(
                f"The run '{out}' already exists: continue it with --resume, give another --out, or remove it."
            )
        return out, config
    _require_run(out)
    before = read_config(out / "config.toml")
    check_changes(before, config, out)
    # A change is one that was asked for: a recipe that has become another one, in a later version, asks for none.
    if others := find_differences(change_settings(before, settings), config):
        raise UserError(
            f"The run '{out}' was started with other settings ({describe_differences(others)}): "
            f"resume it with  {resume_command(out)}"
        )
    return out, dataclasses.replace(config, init=before.init)


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


def _require_run(out: Path) -> None:
    if not (out / "config.toml").is_file():
        raise UserError(
            f"'{out}' is not a run directory, so there is nothing to resume: leave out --resume to start a new run."
        )
    from bnce.runs.directory import LEXICON_FILE

    if (out / LEXICON_FILE).is_file():
        raise UserError(
            f"The words of '{out}' were changed by 'bnce vocab', so it has no state to resume from: "
            "prepare a corpus with the words you want and train a new run."
        )


class Display:
    """Shows a run's progress on standard error."""

    def __init__(self, config: RunConfig, num_train_tokens: int) -> None:
        limit = config.training.max_train_tokens or num_train_tokens
        streams = config.training.batch_size
        total = config.training.epochs * (min(limit, num_train_tokens) // streams * streams)
        self.bar = progress_bar("speed", "perplexity", where_there_is_room=["loss"])
        self.is_evaluating = False
        empty: dict[str, Any] = {"speed": "", "perplexity": "", "loss": ""}
        self.name = f"{config.model.name} {config.loss.name}"
        self.task = self.bar.add_task(self.name, total=total, **empty)
        self.evaluation = self.bar.add_task("evaluating", total=None, visible=False, **empty)

    def advanced(self, *, tokens: int, words_per_second: float, loss: float) -> None:
        """Move the bar."""
        self.bar.update(self.task, completed=tokens, speed=f"{words_per_second:,.0f} w/s", loss=f"loss {loss:.3f}")

    def evaluating(self, split: str, num_done: int, num_tokens: int) -> None:
        """Show a second bar as long as an evaluation takes."""
        if not self.is_evaluating:
            self.bar.reset(self.evaluation, description=f"evaluating on {split}", total=num_tokens)
        self.is_evaluating = num_done < num_tokens
        self.bar.update(self.evaluation, completed=num_done, visible=self.is_evaluating)

    def evaluated(self, record: dict[str, Any]) -> None:
        """Show the newest perplexities, in a line of their own where there is no bar to show them."""
        constant = "" if record["ppl_n"] is None else f"PPLn {record['ppl_n']:.1f} "
        perplexity = f"{constant}PPLf {record['ppl_f']:.1f}"
        self.bar.update(self.task, perplexity=perplexity)
        if self.bar.disable and not record["step"]:
            self.bar.tell(f"{self.name} before the first step: validation {perplexity}")
        elif self.bar.disable:
            self.bar.tell(
                f"{self.name} step {record['step']:,}, epoch {record['epoch']:.2f}: loss {record['loss']:.3f}, "
                f"validation {perplexity}, {record['words_per_second']:,.0f} w/s"
            )

    def noticed(self, sentence: str) -> None:
        """Print a sentence above the bar."""
        self.bar.tell(sentence)


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
