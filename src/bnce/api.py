"""`bnce.train` and `bnce.evaluate`: what the commands of these names do, without what these print."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from bnce.corpus import opening
from bnce.corpus.opening import corpus_setting
from bnce.corpus.store import Corpus
from bnce.corpus.streams import training_streams
from bnce.editing.warm_start import check_same_network, inherited_settings, start_from
from bnce.errors import DiskFullError, UserError, argument
from bnce.evaluation import evaluate as measuring
from bnce.evaluation.breakdown import without_detail
from bnce.evaluation.evaluate import Evaluation
from bnce.files import read_object
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
    wanted = Wanted(recipe, corpus, out, model, loss, list((settings or {}).items()), resume, init, device)
    return plan_training(wanted).train(observer)


@dataclass(frozen=True)
class Wanted:
    """What a run is asked for: the arguments of `train`, and the options of its command."""

    recipe: str | Path | None
    corpus: str | Path | Corpus | None
    out: str | Path | None
    model: str | None
    loss: str | None
    settings: Sequence[Setting]
    resume: bool
    init: str | Path | None
    device: str


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


def plan_training(wanted: Wanted, open_corpus: Callable[[str], Corpus] = opening.open_corpus) -> Plan:
    """Decide what a run does and where, refuse what cannot be, and lay it out unless it is there.

    Of many processes the first one decides, and the others follow.
    """
    if not started_many():
        return _plan(wanted, open_corpus)
    name = device_of_process(wanted.device)
    world = open_world(choose_device(name))
    wanted = replace(wanted, device=name)
    if num_restarts() and wanted.out is not None and state_files(Path(wanted.out)):
        # torchrun starts a run that broke off again with the same command: what that begins with, the run has by now.
        wanted = replace(wanted, recipe=None, model=None, loss=None, init=None, resume=True)
    plan: Plan | None = None
    if world.is_first:
        try:
            plan = _plan(wanted, open_corpus, world.size)
        except BaseException:
            world.share(None)
            raise
    shared = world.share(None if plan is None else (str(plan.run.path), plan.run.config, str(plan.corpus.directory)))
    if shared is None:
        leave_after_the_first()
    if plan is None:
        path, config, directory = shared
        run, corpus = replace(Run.open(path), config=config), open_corpus(directory)
        start = _find_start(config, corpus, run.path, None)
        plan = Plan(run, corpus, choose_device(name), wanted.resume, start, ())
    world.wait()
    return replace(plan, world=world)


def _plan(wanted: Wanted, open_corpus: Callable[[str], Corpus], num_processes: int = 1) -> Plan:
    if wanted.init is not None and wanted.resume:
        raise UserError(
            f"A resumed run continues from its own weights: leave out {argument('init')}, or give another "
            f"{argument('out')}."
        )
    name = str(wanted.corpus.directory if isinstance(wanted.corpus, Corpus) else wanted.corpus or "")
    device, recipe, notices = choose_device(wanted.device), wanted.recipe, []
    source = None if wanted.init is None else Run.open(wanted.init)
    if source is not None and not name:
        check_corpus_is_there(source.path, source.config)
        name = source.config.corpus
    if recipe is None and name and not wanted.resume:
        recipe, reason = choose_recipe(open_corpus(name), device)
        notices.append(reason)
    resolved, out = None, wanted.out
    if recipe is not None or not wanted.resume:
        resolved = _resolve(recipe, wanted, name, source)
        out = out or Path("runs") / f"{resolved.recipe}-{resolved.model.name}-{resolved.loss.name}"
    elif out is None:
        raise UserError(f"{argument('resume', True)} needs the run to continue: give it as {argument('out', 'RUN')}.")
    elif wanted.model or wanted.loss:
        raise UserError(
            f"A resumed run keeps its model and its loss: leave out {argument('model')} and {argument('loss')}."
        )
    out = Path(out)
    if wanted.resume:
        config = resume_config(out, wanted.settings, resolved)
        if name:
            config = msgspec.structs.replace(config, corpus=corpus_setting(name))  # where it lies from now on
    else:
        assert resolved is not None
        refuse_begun(out)
        config = resolved
        if (advice := advise_noise(config)) is not None:
            notices.append(advice)
    check_groups(config.training, num_processes)
    # A corpus that was moved is the same one to a run: that is checked by its words and the digests of its splits.
    named = resolved or config
    corpus = open_corpus_of(out, named, name, open_corpus) if wanted.resume else open_corpus(config.corpus)
    start = _find_start(config, corpus, out, source)
    if start is not None:
        record = start.record
        notices.append(
            f"Starting from '{record['run']}' (step {record['step']}): {record['num_words_kept']:,} words keep "
            f"their weights, {record['num_words_new']:,} are new, {record['num_words_dropped']:,} are dropped."
        )
    if source is not None and corpus.normaliser != source.normaliser:
        notices.append(
            f"The corpus '{corpus.directory}' was cut into words in another way than the text of '{source.path}' "
            f"({tell_differences(corpus.normaliser, source.normaliser)}): words that are spelled differently start "
            "as new words."
        )
    if wanted.resume:
        run = replace(Run.open(out), config=config)
    else:
        if (out / "config.toml").is_file():
            with hold_run(out):
                remove_unbegun(out)
        check_trainable(config, corpus)
        run = Run.create(out, config, corpus)
    return Plan(run, corpus, device, wanted.resume, start, tuple(notices))


def _resolve(recipe: str | Path | None, wanted: Wanted, corpus: str, source: Run | None) -> RunConfig:
    """Resolve a recipe, with the network of the run that it starts from, if there is one."""
    if recipe is None:
        raise UserError(
            f"Neither a recipe nor a corpus was given: give {argument('corpus', 'DIR')} (from 'bnce prepare') "
            f"to choose the recipe by the size of the corpus, or one of {', '.join(recipe_names())}."
        )
    model, loss, settings = wanted.model, wanted.loss, wanted.settings
    if source is not None:
        model, loss = model or source.config.model.name, loss or source.config.loss.name
        settings = [*inherited_settings(source.config, model, loss).items(), *settings]
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
    part = open_part(opened, split=split or "test", text=text, corpus=corpus, max_words=max_words, notice=notice)
    if opened.config.loss.caveat:
        notice(opened.config.loss.caveat)
    model, known, num_bytes = load_model(opened, str(chosen)), opened.word_counts, part.num_bytes
    return measuring.evaluate(
        model, part.ids, progress=progress, known=known, num_bytes=num_bytes, by_sentence=by_sentence
    )
