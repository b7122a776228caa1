"""The one place that decides which run goes on, with which settings, on which text and from which state.

Weights, the optimiser's memory and the place in the text go on only where the network, the loss, the text and the
batches are the same. Rates, the length of the run and how often it is measured and saved may change on the way. The
validation text may not: the best model so far is the best on that text.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from bnce import files
from bnce.corpus.store import Corpus
from bnce.errors import UserError, argument
from bnce.files import parse_toml
from bnce.runs.checkpoint import state_files
from bnce.runs.directory import CONFIG_FILE, MODEL_FILE, RUN_FILE, WORD_FILES, Run
from bnce.runs.metrics import read_metrics
from bnce.settings import SECTIONS, RunConfig, Setting, change_settings, from_written, read_config, to_tables

MAY_CHANGE = {
    *(f"optimiser.{name}" for name in ("learning_rate", "body_learning_rate", "clip_norm", "schedule", "patience")),
    *("optimiser.warmup_steps", "training.budget_seconds", "training.epochs", "training.evaluations_per_epoch"),
    *("training.max_test_tokens", "training.stop_after", "training.checkpoint_seconds", "training.precision"),
    "training.deterministic",
}
SPLIT_NAMES = {"train": "training", "valid": "validation", "test": "test"}


def find_differences(before: RunConfig, now: RunConfig) -> dict[str, tuple[Any, Any]]:
    """List the settings in which two configs differ, by name, with both values; where the corpus lies is none."""
    old, new = _by_name(before), _by_name(now)
    pairs = {name: (old.get(name, "not set"), new.get(name, "not set")) for name in {**old, **new}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _by_name(config: RunConfig) -> dict[str, Any]:
    """Give settings as they are named on the command line."""
    tables = to_tables(config)
    settings = {f"{name}.{key}": value for name in SECTIONS for key, value in tables[name].items()}
    return {"recipe": config.recipe, **settings}


def check_changes(before: RunConfig, now: RunConfig, path: Path) -> None:
    """Refuse to change settings of a run that may not change, all by name."""
    remedy = (
        ", which cannot change when a run is resumed: leave them out, or train a new run with another "
        f"{argument('out')}. A resumed run may change {', '.join(sorted(MAY_CHANGE))}."
    )
    check_same_settings(before, now, path, remedy, MAY_CHANGE)


def check_same_settings(
    before: RunConfig, now: RunConfig, path: Path, remedy: str, may_change: Collection[str] = ()
) -> None:
    """Refuse to go on with a run with other settings than its own."""
    differences = {key: pair for key, pair in find_differences(before, now).items() if key not in may_change}
    if differences:
        told = ", ".join(f"{key} {before}, not {now}" for key, (before, now) in differences.items())
        raise UserError(f"The run '{path}' was started with other settings ({told}){remedy}")


def resume_config(path: Path, settings: Sequence[Setting] = (), wanted: RunConfig | None = None) -> RunConfig:
    """Give what a run goes on with: its own config with `key=value` settings changed.

    `wanted` is a recipe that was named, with the settings on top: it must come to the same.
    """
    if not (path / CONFIG_FILE).is_file():
        raise UserError(
            f"'{path}' is not a run directory, so there is nothing to resume: leave out {argument('resume', True)} to "
            "start a new run."
        )
    before = read_config(path / CONFIG_FILE)
    config = change_settings(before, settings)
    check_changes(before, config if wanted is None else wanted, path)
    if wanted is not None:
        # A change is one that was asked for: a recipe that has become another one, in a later version, asks for none.
        check_same_settings(config, wanted, path, f": resume it with  {resume_command(path)}")
    return config


def check_resumable(run: Run) -> None:
    """Refuse to train over a model or figures of a run that kept no state: it would begin anew."""
    has_something = (run.path / MODEL_FILE).exists() or read_metrics(run.path).records
    if has_something and not state_files(run.path):
        raise UserError(
            f"'{run.path}' has no state to resume from, as an exported run, a finished row of an experiment and a run "
            f"with training.checkpoint_seconds=inf: continue from its best model in a new run with "
            f"{argument('init', run.path)}, or train with another {argument('out')}."
        )


def check_corpus(run: Run, corpus: Corpus) -> None:
    """Refuse to train on another text than the run was made for; where it lies makes no difference."""
    run.check_words(corpus)
    check_same_texts(run, corpus, ("train", "valid"))


def check_same_texts(run: Run, corpus: Corpus, splits: Sequence[str]) -> None:
    """Refuse a corpus of which one of these splits is another text than it was to the run.

    By another validation text, the best model so far would be the best of nothing.
    """
    now = corpus.manifest.hashes
    differing = [SPLIT_NAMES[name] for name in splits if name in run.texts and run.texts[name] != now.get(name)]
    if differing:
        raise UserError(
            f"The corpus '{corpus.directory}' has another {' and '.join(differing)} text than the run '{run.path}' was "
            f"begun with: give the corpus with the old text as {argument('corpus')}, or train with another "
            f"{argument('out')}."
        )


def check_state(run: Run, path: Path, origin: Mapping[str, str]) -> None:
    """Refuse a state of another run."""
    try:
        if origin.get("run") != run.digest:
            raise UserError("it was made with other words, texts or settings.")
        check_changes(settings_of_state(origin), run.config, run.path)
    except UserError as error:
        raise UserError(f"'{path}' belongs to another run: {error}") from error


def settings_of_state(origin: Mapping[str, str]) -> RunConfig:
    """Read the settings that a state was made with."""
    return from_written(parse_toml(origin.get("settings", "").encode()), "its settings")


def is_begun(path: Path) -> bool:
    """Say whether a run holds anything that training it made: a state, an evaluation, a model; or files of others."""
    made_at_the_start = {RUN_FILE, *WORD_FILES, CONFIG_FILE, "summary.json", "tensorboard"}
    return (path / CONFIG_FILE).is_file() and any(
        found.name not in made_at_the_start and found.suffix != files.PARTIAL_SUFFIX for found in path.iterdir()
    )


def refuse_begun(path: Path) -> None:
    """Refuse to start a run anew where there is one to go on with."""
    if is_begun(path):
        raise UserError(
            f"The run '{path}' already exists: continue it with {argument('resume', True)}, give another "
            f"{argument('out')}, or remove it."
        )


def remove_unbegun(path: Path) -> None:
    """Remove a run that failed, or was killed, before it had anything to keep: its place can be used again.

    Whoever calls it holds the run.
    """
    if (path / CONFIG_FILE).is_file() and not is_begun(path):
        shutil.rmtree(path)


def resume_command(path: Path, *words: str) -> str:
    """Write what somebody types to go on with a run."""
    return shlex.join(["bnce", "train", "--out", str(path), "--resume", *words])
