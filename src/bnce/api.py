"""`bnce.train` and `bnce.evaluate`: what the commands of these names do, without what these print."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from bnce.corpus import opening
from bnce.corpus.opening import corpus_setting
from bnce.corpus.store import Corpus
from bnce.corpus.streams import training_streams
from bnce.errors import DiskFullError, UserError, argument
from bnce.evaluation import evaluate as measuring
from bnce.evaluation.breakdown import without_detail
from bnce.evaluation.evaluate import Evaluation
from bnce.files import read_object
from bnce.lexicon.start import check_same_network, inherited_settings, start_from
from bnce.machine.devices import choose_device
from bnce.machine.processes import World, device_of_process, leave_after_the_first, open_world
from bnce.machine.threads import num_restarts, started_many
from bnce.recipes import load_recipe, recipe_names
from bnce.runs.checkpoint import state_files
from bnce.runs.directory import Run, hold_run
from bnce.runs.model_file import load_model
from bnce.runs.resuming import refuse_begun, remove_unbegun, resume_command, resume_config
from bnce.runs.texts import check_corpus_is_there, check_one_text, open_corpus_of, open_part
from bnce.settings import RunConfig, Setting
from bnce.text.normalise import tell_differences
from bnce.training.advice import advise_noise, check_groups, check_trainable, choose_recipe
from bnce.training.recorder import Observer
from bnce.training.run import Start, run_training


def train(
    recipe: str | Path | None = None,
    *,
    corpus: str | Path | Corpus | None = None,
    out: str | Path | None = None,
    model: str | None = None,
    loss: str | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    init: str | Path | None = None,
    device: str = "auto",
    observer: Observer | None = None,
) -> dict[str, Any]:
    """Train a model, write it to a run directory, and return the run's summary with its figures on test.

    `recipe` is a name ("small", "wiki", …) or a TOML file; without it the size of the corpus decides. `corpus`
    is a directory that `bnce.prepare` made; `out` is the run directory, runs/RECIPE-MODEL-LOSS by default. `settings`
    changes settings, such as {"training.epochs": 3}. `resume` continues the run at `out`; `init` is a run to start
    from. `device` is auto, cpu, cuda or cuda:N. `observer` gets the progress. Ctrl-C saves the run and stops.
    """
    plan = plan_training(
        recipe,
        corpus=corpus,
        out=out,
        model=model,
        loss=loss,
        settings=list((settings or {}).items()),
        resume=resume,
        init=init,
        device=device,
    )
    return plan.train(observer)


@dataclass(frozen=True)
class Plan:
    """A run that is laid out, and can begin or go on."""

    run: Run
    corpus: Corpus
    device: torch.device
    resume: bool
    start: Start | None
    notices: tuple[str, ...]  # what was decided that nobody asked for
    world: World = field(default_factory=World)  # the processes that train it

    def train(self, observer: Observer | None = None, *, command: str = "") -> dict[str, Any]:
        """Train to the end, and give the summary; `command` is kept in it."""
        path = self.run.path
        if observer is None or not self.world.is_first:
            observer = _Nobody()
        for notice in self.notices:
            observer.noticed(notice)
        try:
            with hold_run(path) if self.world.is_first else nullcontext():
                summary = run_training(
                    self.run,
                    self.corpus,
                    self.device,
                    observer,
                    resume=self.resume,
                    command=command,
                    start=self.start,
                    world=self.world,
                )
        except DiskFullError as error:
            # Begun anew, the run that is there now would be refused.
            raise DiskFullError(error.what, error.remedy, f"continue with  {resume_command(path)}") from error
        record = {"run": str(path), "recipe": self.run.config.recipe, **summary}
        if (path / "evaluation.json").is_file():
            record["test"] = without_detail(read_object(path / "evaluation.json"))
        return record


def plan_training(
    recipe: str | Path | None,
    *,
    resume: bool,
    out: str | Path | None,
    device: str,
    open_corpus: Callable[[str], Corpus] = opening.open_corpus,
    **wanted: Any,
) -> Plan:
    """Decide what a run does and where, refuse what cannot be, and lay it out unless it is there.

    Of many processes the first one decides, and the others follow.
    """
    make = functools.partial(_plan, recipe, out=out, open_corpus=open_corpus, **wanted)
    if not started_many():
        return make(resume=resume, device=device)
    name = device_of_process(device)
    world = open_world(choose_device(name))
    # torchrun starts a run that broke off again with the same command.
    resume = resume or (num_restarts() > 0 and out is not None and bool(state_files(Path(out))))
    plan: Plan | None = None
    if world.is_first:
        try:
            plan = make(resume=resume, device=name, num_processes=world.size)
        except BaseException:
            world.share(None)
            raise
    shared = world.share(None if plan is None else (str(plan.run.path), plan.run.config, str(plan.corpus.directory)))
    if shared is None:
        leave_after_the_first()
    if plan is None:
        path, config, corpus = shared
        run = dataclasses.replace(Run.open(path), config=config)
        opened = open_corpus(corpus)
        start = _find_start(config, opened, Path(path), None)
        plan = Plan(run, opened, choose_device(name), resume, start, ())
    world.wait()
    return dataclasses.replace(plan, world=world, resume=resume)


def _plan(
    recipe: str | Path | None,
    *,
    corpus: str | Path | Corpus | None,
    out: str | Path | None,
    model: str | None,
    loss: str | None,
    settings: Sequence[Setting],
    resume: bool,
    init: str | Path | None,
    device: str,
    open_corpus: Callable[[str], Corpus],
    num_processes: int = 1,
) -> Plan:
    if init is not None and resume:
        raise UserError(
            f"A resumed run continues from its own weights: leave out {argument('init')}, or give another "
            f"{argument('out')}."
        )
    name = str(corpus.directory if isinstance(corpus, Corpus) else corpus or "")
    chosen = choose_device(device)
    source = None if init is None else Run.open(init)
    if source is not None and not name:
        check_corpus_is_there(source.path, source.config)
        name = source.config.corpus
    notices = []
    if recipe is None and name and not resume:
        recipe, reason = choose_recipe(open_corpus(name), chosen)
        notices.append(reason)
    wanted = None
    if recipe is not None or not resume:
        wanted = _resolve(recipe, model, loss, name, settings, source)
        out = out or Path("runs") / f"{wanted.recipe}-{wanted.model.name}-{wanted.loss.name}"
    elif out is None:
        raise UserError(f"{argument('resume', True)} needs the run to continue: give it as {argument('out', 'RUN')}.")
    elif model or loss:
        raise UserError(
            f"A resumed run keeps its model and its loss: leave out {argument('model')} and {argument('loss')}."
        )
    out = Path(out)
    if resume:
        config = resume_config(out, settings, wanted)
        if name:
            config = msgspec.structs.replace(config, corpus=corpus_setting(name))  # where it lies from now on
    else:
        assert wanted is not None
        refuse_begun(out)
        config = wanted
        if (advice := advise_noise(config)) is not None:
            notices.append(advice)
    check_groups(config.training, num_processes)
    # A corpus that was moved is the same one to a run: that is checked by its words and the digests of its splits.
    opened = open_corpus_of(out, wanted or config, name, open_corpus) if resume else open_corpus(config.corpus)
    start = _find_start(config, opened, out, source)
    if start is not None:
        notices.append(_describe_start(start))
        if source is not None and opened.normaliser != source.normaliser:
            notices.append(
                f"The corpus '{opened.directory}' was cut into words in another way than the text of '{source.path}' "
                f"({tell_differences(opened.normaliser, source.normaliser)}): words that are spelled differently start "
                "as new words."
            )
    if resume:
        run = dataclasses.replace(Run.open(out), config=config)
    else:
        if (out / "config.toml").is_file():
            with hold_run(out):
                remove_unbegun(out)
        check_trainable(config, opened)
        run = Run.create(out, config, opened)
    return Plan(run, opened, chosen, resume, start, tuple(notices))


def _resolve(
    recipe: str | Path | None,
    model: str | None,
    loss: str | None,
    corpus: str,
    settings: Sequence[Setting],
    source: Run | None,
) -> RunConfig:
    """Resolve a recipe, with the network of the run that it starts from, if there is one."""
    if recipe is None:
        raise UserError(
            f"Neither a recipe nor a corpus was given: give {argument('corpus', 'DIR')} (from 'bnce prepare') "
            f"to choose the recipe by the size of the corpus, or one of {', '.join(recipe_names())}."
        )
    if source is not None:
        model, loss = model or source.config.model.name, loss or source.config.loss.name
        settings = [*inherited_settings(source.config, model, loss), *settings]
    config = load_recipe(str(recipe), model=model, loss=loss, corpus=corpus or None, settings=settings)
    if source is not None:
        check_same_network(config, source)
        config = msgspec.structs.replace(config, init=str(source.path.resolve()))
    if not config.corpus:
        raise UserError(
            f"The recipe '{recipe}' needs a corpus: make one with 'bnce prepare' and give it as "
            f"{argument('corpus', 'DIR')}."
        )
    return msgspec.structs.replace(config, corpus=corpus_setting(config.corpus))


def _find_start(config: RunConfig, corpus: Corpus, out: Path, source: Run | None) -> Start | None:
    """Find the weights that a run starts from; one that was begun has them in its states."""
    if not config.init or state_files(out):
        return None
    counts = training_streams(config.training, corpus).count_targets(len(corpus.vocabulary))
    return start_from(source or Run.open(config.init), corpus.vocabulary, counts, config.loss)


def _describe_start(start: Start) -> str:
    record = start.record
    return (
        f"Starting from '{record['run']}' (step {record['step']}): {record['num_words_kept']:,} words keep "
        f"their weights, {record['num_words_new']:,} are new, {record['num_words_dropped']:,} are dropped."
    )


class _Nobody:
    """An observer that looks away: the summary and metrics.jsonl have all of it."""

    def advanced(self, *, tokens: int, words_per_second: float, loss: float, seconds_left: float | None) -> None: ...

    def evaluating(self, split: str, num_done: int, num_tokens: int) -> None: ...

    def evaluated(self, record: dict[str, Any]) -> None: ...

    def noticed(self, sentence: str) -> None: ...


def evaluate(
    run: str | Path | Run,
    *,
    split: str | None = None,
    text: str | Path | None = None,
    corpus: str | Path | Corpus | None = None,
    max_words: int = 0,
    by_sentence: bool = True,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
    notice: Callable[[str], object] = lambda sentence: None,
) -> Evaluation:
    """Measure the perplexity of a run's best model: PPLf with the softmax, PPLn with the constant Z; in context.

    `by_sentence` of the result has the same with each sentence without context, which doubles the time; with
    `by_sentence=False` it is left out.

    The text is a split of its corpus ("test" by default) or of another `corpus` with the same words, or a `text` file.
    Only the first `max_words` count, if they are not 0. `progress` gets the numbers of tokens done and in all, `notice`
    gets warnings.
    """
    check_one_text(split=split, text=text, corpus=corpus)
    opened = run if isinstance(run, Run) else Run.open(run)
    chosen = choose_device(device)
    part = open_part(
        opened,
        split=split or "test",
        text=text,
        corpus=corpus,
        max_words=max_words,
        notice=notice,
    )
    if opened.config.loss.caveat:
        notice(opened.config.loss.caveat)
    network = load_model(opened, str(chosen))
    return measuring.evaluate(
        network,
        part.ids,
        progress=progress,
        known=opened.word_counts,
        num_bytes=part.num_bytes,
        by_sentence=by_sentence,
    )
