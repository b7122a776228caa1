"""Is a run as it was written? Every file of it is read through and compared with what is known of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from bnce.config import read_config
from bnce.corpus.pieces import KNOWN_WORDS_FILE, PIECES_FILE, read_vocabulary
from bnce.corpus.store import COUNTS_FILE, VOCABULARY_FILE
from bnce.corpus.vocabulary import Vocabulary
from bnce.errors import UserError
from bnce.files import PARTIAL_SUFFIX
from bnce.measure.finding import Finding, look
from bnce.measure.integrity import check_spelling
from bnce.reading import read_object
from bnce.runs.checkpoint import MODEL_FILE, read_model, read_state, state_file, state_files
from bnce.runs.directory import LEXICON_FILE, RunDirectory, read_counts, read_normaliser, read_summary
from bnce.runs.identity import find_changes, identify
from bnce.runs.metrics import METRICS_FILE, read_metrics
from bnce.runs.model_file import load_model
from bnce.runs.unknown_words import UNKNOWN_WORDS_FILE, UnknownWords
from bnce.spelling.model import SPELLING_FILE

_Checks = Mapping[str, Callable[[Path], str]]

RECORD_FILES = ("summary.json", "evaluation.json", LEXICON_FILE)


def examine_run(path: Path) -> list[Finding]:
    """Look at every file of a run."""
    findings = [look(name, check, path) for name, check in _ALWAYS.items()] + _look_if_there(path, _OF_PIECES)
    is_described = all(finding.well for finding in findings)
    findings += _look_if_there(path, _BESIDE)
    if (path / MODEL_FILE).is_file():
        model = Finding(MODEL_FILE, False, "it cannot be used without the files above")
        if is_described:
            model, changes = _examine_model(path)
            # What is left of the changes is a file that is gone.
            findings = [changes.pop(finding.name, finding) for finding in findings] + list(changes.values())
        findings.append(model)
    elif (path / METRICS_FILE).is_file() and not read_summary(path).get("model_removed"):
        told = "missing; every run has one after its first evaluation (except rows of some experiments of 0.1.0)"
        findings.append(Finding(MODEL_FILE, False, told))
    findings += _examine_states(path)
    if is_described:
        findings += _find_lost_last_state(path)
    findings += _look_if_there(path, {METRICS_FILE: _check_metrics})
    findings += [look(name, _check_record, path / name) for name in RECORD_FILES if (path / name).is_file()]
    left = "being written now, or left by a killed process; the next training removes it"
    return [*findings, *(Finding(file.name, True, left) for file in sorted(path.glob(f".*{PARTIAL_SUFFIX}")))]


def _examine_states(path: Path) -> list[Finding]:
    """Look at the saved states, and miss the one that the newest names as kept beside it."""
    previous = None

    def check(file: Path) -> str:
        nonlocal previous
        previous = None
        _, metadata = read_state(file)
        json.loads(metadata["record"])
        previous = metadata.get("previous")
        return "checksum matches"

    findings = [look(file.name, check, file) for file in state_files(path)]
    if previous is not None and not (path / previous).exists():
        findings.insert(0, Finding(previous, False, f"missing; {findings[-1].name} was saved after it"))
    return findings


def _find_lost_last_state(path: Path) -> list[Finding]:
    """Miss the state that a run ended with, where others are there and it was one to be saved."""
    summary, states = read_summary(path), state_files(path)
    step, saves = summary.get("step"), math.isfinite(read_config(path / "config.toml").training.checkpoint_seconds)
    has_ended = summary.get("status") == "stopped" or (summary.get("status") == "finished" and saves)
    if not states or not has_ended or type(step) is not int:
        return []
    last = state_file(path, step)
    return [] if last in states else [Finding(last.name, False, "missing; the run ended at this step")]


def _check_config(path: Path) -> str:
    config = read_config(path / "config.toml")
    return f"{config.model.name} with {config.loss.name}"


def _check_words(path: Path) -> str:
    unit = "pieces" if (path / PIECES_FILE).is_file() else "words"
    return f"{len(Vocabulary.read(path / VOCABULARY_FILE)):,} {unit}"


# By the name of a file, what is told of it: of those that every run has, of those of runs over pieces, and of others.
_ALWAYS: _Checks = {
    "config.toml": _check_config,
    VOCABULARY_FILE: _check_words,
    COUNTS_FILE: lambda path: f"counts {int(read_counts(path).sum()):,} tokens",
    "normaliser.json": lambda path: ", ".join(
        f"{key} = {value}" for key, value in read_normaliser(path).to_dict().items()
    ),
}
_OF_PIECES: _Checks = {
    PIECES_FILE: lambda path: f"cuts words into {len(read_vocabulary(path)):,} pieces",
    KNOWN_WORDS_FILE: lambda path: f"{len(Vocabulary.read(path / KNOWN_WORDS_FILE)):,} words; others are <unk>",
}
_BESIDE: _Checks = {
    UNKNOWN_WORDS_FILE: lambda path: f"{len(UnknownWords.read(path / UNKNOWN_WORDS_FILE)):,} words share <unk>",
    SPELLING_FILE: lambda path: check_spelling(path / SPELLING_FILE),
}


def _look_if_there(path: Path, checks: _Checks) -> list[Finding]:
    return [look(name, check, path) for name, check in checks.items() if (path / name).is_file()]


def _examine_model(path: Path) -> tuple[Finding, dict[str, Finding]]:
    """Look at a model, and find the files beside it that are not those it was written with."""
    try:
        _, metadata = read_model(path / MODEL_FILE)
    except UserError as error:
        return Finding(MODEL_FILE, False, str(error)), {}
    words, network = Vocabulary.read(path / VOCABULARY_FILE), read_config(path / "config.toml").model
    now = identify(path, words, read_counts(path), read_normaliser(path), network)
    changes = {name: Finding(name, False, told) for name, told in find_changes(metadata, now).items()}
    told = "checksum matches; vocabulary, counts and settings have not changed since"
    if "vocabulary" not in metadata:
        told = "written by another program: it has no checksum"
    elif "counts" not in metadata:
        told = "checksum and vocabulary match; an earlier version stored nothing else"
    return look(MODEL_FILE, _check_model, path, told), changes


def _check_model(path: Path, told: str) -> str:
    return f"{load_model(RunDirectory.open(path)).num_parameters:,} parameters, {told}"


def _check_metrics(path: Path) -> str:
    """Read the evaluations, each of a later step than the one before."""
    metrics = read_metrics(path)
    wrong = {number: f"is damaged ({why})" for number, why in metrics.damaged.items()} | metrics.repeated
    if wrong:
        raise ValueError(f"line {min(wrong)} {wrong[min(wrong)]}")
    summary = read_summary(path)
    last = metrics.records[-1]["step"] if metrics.records else 0
    if summary.get("status") == "finished" and type(summary.get("step")) is int and last < summary["step"]:
        # A run ends with an evaluation: a file that was cut after a whole line shows by its missing one.
        raise ValueError(f"the evaluation at step {summary['step']}, with which the run ended, is missing")
    return f"{metrics.num_lines:,} evaluations"


def _check_record(path: Path) -> str:
    return f"{len(read_object(path))} entries"
