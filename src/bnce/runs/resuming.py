"""The one place that decides which run goes on, with which settings, on which text and from which state.

Weights, the optimiser's memory and the place in the text go on only where the network, the loss, the text and the
batches are the same. Rates, the length of the run and how often it is measured and saved may change on the way. The
validation text may not: the best model so far is the best on that text.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bnce import files
from bnce.corpus.store import Corpus
from bnce.corpus.streams import training_streams
from bnce.errors import UserError, argument
from bnce.reading import parse_toml
from bnce.runs.checkpoint import MODEL_FILE, state_files
from bnce.runs.directory import DESCRIPTION_FILES, LEXICON_FILE, RunDirectory, is_finished, read_summary
from bnce.runs.metrics import read_metrics
from bnce.settings import SECTIONS, RunConfig, Setting, change_settings, from_written, read_config
from bnce.spelling.model import SPELLING_FILE

MAY_CHANGE = frozenset(
    {
        "optimiser.learning_rate",
        "optimiser.body_learning_rate",
        "optimiser.clip_norm",
        "optimiser.schedule",
        "optimiser.patience",
        "optimiser.warmup_steps",
        "training.budget",
        "training.epochs",
        "training.evaluations_per_epoch",
        "training.max_test_tokens",
        "training.stop_after",
        "training.checkpoint_seconds",
        "training.precision",
        "training.deterministic",
    }
)

TEXTS_KEY = "corpus_sha256"  # in summary.json: the SHA-256 of every split of the corpus
TRAINING_SPLITS = ("train", "valid")  # those that decide what a run learns and which of its models is the best
SPLIT_NAMES = {"train": "training", "valid": "validation", "test": "test"}

Differences = Mapping[str, tuple[Any, Any]]


def find_differences(before: RunConfig, now: RunConfig) -> Differences:
    """List the settings in which two configs differ, by name, with both values; where the corpus lies is none."""
    found: dict[str, tuple[Any, Any]] = {}
    if before.recipe != now.recipe:
        found["recipe"] = before.recipe, now.recipe
    for section in SECTIONS:
        old, new = (msgspec.to_builtins(getattr(config, section)) for config in (before, now))
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        found |= {f"{section}.{key}": (old.get(key, "not set"), new.get(key, "not set")) for key in keys}
    return found


def check_changes(before: RunConfig, now: RunConfig, path: Path) -> None:
    """Refuse to change settings of a run that may not change, all by name."""
    differences = find_differences(before, now)
    _refuse(
        {key: values for key, values in differences.items() if key not in MAY_CHANGE},
        path,
        ", which cannot change when a run is resumed: leave them out, or train a new run with another "
        f"{argument('out')}. A resumed run may change {', '.join(sorted(MAY_CHANGE))}.",
    )


def check_same_settings(before: RunConfig, now: RunConfig, path: Path, remedy: str) -> None:
    """Refuse to go on with a run with other settings than its own."""
    _refuse(find_differences(before, now), path, f": {remedy}")


def _refuse(differences: Differences, path: Path, remedy: str) -> None:
    if differences:
        told = ", ".join(f"{key} {before}, not {now}" for key, (before, now) in differences.items())
        raise UserError(f"The run '{path}' was started with other settings ({told}){remedy}")


def resume_config(path: Path, settings: Sequence[Setting] = (), wanted: RunConfig | None = None) -> RunConfig:
    """Give what a run goes on with: its own config with `key=value` settings changed.

    `wanted` is a recipe that was named, with the settings on top: it must come to the same.
    """
    if not (path / "config.toml").is_file():
        raise UserError(
            f"'{path}' is not a run directory, so there is nothing to resume: leave out {argument('resume', True)} to "
            "start a new run."
        )
    if (path / LEXICON_FILE).is_file():
        raise UserError(
            f"The words of '{path}' were changed by 'bnce vocab', so it has no state to resume from: "
            "prepare a corpus with the words you want and train a new run."
        )
    before = read_config(path / "config.toml")
    config = change_settings(before, settings)
    check_changes(before, config if wanted is None else wanted, path)
    if wanted is not None:
        # A change is one that was asked for: a recipe that has become another one, in a later version, asks for none.
        check_same_settings(config, wanted, path, f"resume it with  {resume_command(path)}")
    return config


def check_resumable(run: RunDirectory) -> None:
    """Refuse to train over an exported model, or over figures of a run that kept no state: it would begin anew.

    A run has its summary before its first step, an export has none.
    """
    anew = f"train with another {argument('out')}"
    has_model = (run.path / MODEL_FILE).exists()
    if has_model and not (run.path / "summary.json").exists():
        raise UserError(f"'{run.path}' is an exported model and has no state to resume from: {anew}.")
    if state_files(run.path):
        return
    if is_finished(run.path):
        raise UserError(f"The run '{run.path}' is finished and has no state to resume from: {anew}.")
    records = read_metrics(run.path).records
    if records or has_model:
        upto = f"figures up to step {records[-1]['step']}" if records else "a model"
        raise UserError(
            f"The run '{run.path}' has {upto} but no state to resume from (training.checkpoint_seconds is "
            f"{run.config.training.checkpoint_seconds:g}): use its best model as it is, continue from it in a "
            f"new run with {argument('init', run.path)}, or {anew}."
        )


def check_corpus(run: RunDirectory, corpus: Corpus) -> None:
    """Refuse to train on another text than the run was made for; where it lies makes no difference."""
    run.check_words(corpus)
    counts = training_streams(run.config.training, corpus).count_targets(len(run.vocabulary))
    if not np.array_equal(counts, run.target_counts):
        raise UserError(
            f"The corpus '{corpus.directory}' has another training text than the run '{run.path}' (its words "
            f"have other counts): prepare the same text again, or train with another {argument('out')}."
        )
    check_same_texts(run.path, corpus, TRAINING_SPLITS)


def check_same_texts(path: Path, corpus: Corpus, splits: Sequence[str]) -> None:
    """Refuse a corpus of which one of these splits is another text than it was to a run, as far as its summary says.

    By another validation text, the best model so far would be the best of nothing.
    """
    before = read_summary(path).get(TEXTS_KEY)
    if not isinstance(before, Mapping):
        return
    now = corpus.manifest.hashes
    differing = [SPLIT_NAMES[name] for name in splits if name in before and before[name] != now.get(name)]
    if differing:
        raise UserError(
            f"The corpus '{corpus.directory}' has another {' and '.join(differing)} text than the run '{path}' was "
            f"begun with: give the corpus with the old text as {argument('corpus')}, or train with another "
            f"{argument('out')}."
        )


def check_state(run: RunDirectory, path: Path, origin: Mapping[str, str]) -> None:
    """Refuse a state of another run."""
    try:
        before = settings_of_state(origin)
        if origin.get("vocabulary") != run.vocabulary.digest:
            raise UserError("it has another vocabulary.")
        check_changes(before, run.config, run.path)
    except UserError as error:
        raise UserError(f"'{path}' belongs to another run: {error}") from error
    _refuse_lost_settings(run, origin)


def settings_of_state(origin: Mapping[str, str]) -> RunConfig:
    """Read what a state was trained with; settings that came with later versions are at their defaults."""
    return from_written(parse_toml(origin.get("settings", "").encode()), "its settings")


def _refuse_lost_settings(run: RunDirectory, origin: Mapping[str, str]) -> None:
    """Refuse a config.toml without settings that a state has: a line was lost, and is not to read as a default."""
    written = parse_toml(origin["settings"].encode())
    now = parse_toml((run.path / "config.toml").read_bytes())
    names = ((section, key) for section in SECTIONS for key in written.get(section, {}))
    lost = [f"{section}.{key}" for section, key in names if key not in now[section]]
    if lost:
        raise UserError(
            f"'{run.path / 'config.toml'}' has no {', '.join(lost)}, with which the run was trained: restore it. "
            f"To change a setting, use {argument('settings')}."
        )


def is_begun(path: Path) -> bool:
    """Say whether a run holds anything that training it made: a state, an evaluation, a model; or files of others."""
    made_at_the_start = {*DESCRIPTION_FILES, SPELLING_FILE, "summary.json", "tensorboard"}
    return (path / "config.toml").is_file() and any(
        found.name not in made_at_the_start and not found.name.endswith(files.PARTIAL_SUFFIX)
        for found in path.iterdir()
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
    if (path / "config.toml").is_file() and not is_begun(path):
        shutil.rmtree(path)


def remove_leftovers(path: Path) -> None:
    """Remove what a run that was killed while saving left behind, which can be as large as a checkpoint."""
    # safetensors wrote beside the place it was given, too, under a name of its own.
    for pattern in (f".*{files.PARTIAL_SUFFIX}", ".tmp*"):
        for leftover in path.glob(pattern):
            files.remove(leftover)


def resume_command(path: Path, *words: str) -> str:
    """Write what somebody types to go on with a run."""
    return shlex.join(["bnce", "train", "--out", str(path), "--resume", *words])
