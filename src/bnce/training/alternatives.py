"""The table of alternatives to the softmax: the same search for each on validation text, then its final runs.

A trial trains on the text, or on part of it, and is judged on validation alone. The learning rates are tried at half
and at twice their values, then two values of a setting of the loss's own (where it has none, the body's rate alone),
each with the best of what came before. Trials and final runs are rows of an experiment: finished ones are kept and not
repeated. Trials and the seeds after the first may run beside each other; the run of the first seed has the machine to
itself, and the speeds of the table are its speeds.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bnce import files
from bnce.config import RunConfig
from bnce.corpus.store import Corpus
from bnce.kinds.alternatives import Alternative, Setting
from bnce.runs.directory import is_finished
from bnce.runs.metrics import read_metrics
from bnce.training.experiment import PlannedRow, is_settled, tidy_up, train_rows
from bnce.training.observer import Observer

FACTORS = (0.5, 2.0)  # of both learning rates
TRIALS = "trials"  # their directory
SCORING_FILE = "scoring.json"
CHOICE_FILE = "choices.json"
UNREAD_TEST = 1000  # tokens of test that every run reads; trials are not judged by them
RATE, BODY_RATE = "optimiser.learning_rate", "optimiser.body_learning_rate"

Settings = Mapping[str, Setting]


@dataclass(frozen=True)
class Comparing:
    """Everything that the runs of one comparison share."""

    out: Path
    corpus: Corpus
    device: torch.device
    make_config: Callable[[PlannedRow], RunConfig]
    watch: Callable[[RunConfig], AbstractContextManager[Observer]]
    note_failure: Callable[[str, str], None]
    measure: Callable[[Path], Mapping[str, Any]]  # how fast a final run scores, before its model is dropped
    trial_tokens: int  # 0: all of them
    seeds: Sequence[int]
    command: str = ""
    keep_models: bool = False
    num_threads: int = 0
    deadline: float = math.inf  # on the monotonic clock: no run starts after it

    def compare(self, pairs: Sequence[tuple[str, Alternative]]) -> bool:
        """Search and train all of them; say whether there was time for everything."""
        complete = True
        for model, alternative in pairs:
            chosen = self.search(model, alternative)
            if chosen is None:
                complete = False
                continue
            choices = {**read_json(self.out / CHOICE_FILE), f"{model}-{alternative.name}": chosen}
            files.write_json(self.out / CHOICE_FILE, choices)
            for seed in self.seeds:
                row = final_row(model, alternative, chosen, seed)
                complete &= self._train(row, measured=seed == self.seeds[0])
        return complete

    def prepare(self, model: str, alternative: Alternative) -> None:
        """Do what may run beside other runs: the search, and the final runs whose speed does not count."""
        if (chosen := self.search(model, alternative)) is None:
            return
        for seed in self.seeds[1:]:
            self._train(final_row(model, alternative, chosen, seed), measured=False)

    def search(self, model: str, alternative: Alternative) -> dict[str, Setting] | None:
        """Find the settings with the lowest validation PPLf; None where time ran out or no trial stayed finite."""
        start = self.make_config(PlannedRow(model, alternative.loss, written(alternative.settings)))
        best, lowest = dict(alternative.settings), math.inf
        number = 0
        for list_changes in (_as_it_is, _rates, _own_setting):
            found = dict(best)
            for change in list_changes(start, alternative, best):
                number += 1
                tried = {**best, **change}
                row = trial_row(model, alternative, tried, number, self.trial_tokens)
                if not self._train(row, measured=False):
                    return None
                perplexity = valid_perplexity(self.out / row.name)
                if perplexity < lowest:
                    lowest, found = perplexity, tried
            best = found
        return best if math.isfinite(lowest) else None

    def _train(self, row: PlannedRow, *, measured: bool) -> bool:
        """Train a row, unless it is done; say whether it is, or has failed for good."""
        path, failed = self.out / row.name, list[str]()

        def note(name: str, why: str) -> None:
            failed.append(name)
            self.note_failure(name, why)

        if not is_settled(path) and time.monotonic() > self.deadline:
            return False
        train_rows(
            [row],
            self.out,
            self.make_config,
            self.corpus,
            self.device,
            self.watch,
            note,
            command=self.command,
            keep_models=measured or (self.keep_models and not row.place.startswith(TRIALS)),
            num_threads=self.num_threads,
        )
        if measured and is_finished(path) and not (path / SCORING_FILE).exists():
            files.write_json(path / SCORING_FILE, self.measure(path))
        if not self.keep_models and is_finished(path):
            tidy_up(path, keep_models=False)
        return bool(failed) or is_settled(path)


Changes = list[dict[str, Setting]]


def _as_it_is(start: RunConfig, alternative: Alternative, best: Settings) -> Changes:
    return [{}]


def _rates(start: RunConfig, alternative: Alternative, best: Settings) -> Changes:
    optimiser = start.optimiser
    return [
        {RATE: optimiser.learning_rate * factor, BODY_RATE: optimiser.body_learning_rate * factor} for factor in FACTORS
    ]


def _own_setting(start: RunConfig, alternative: Alternative, best: Settings) -> Changes:
    if alternative.knob is not None:
        return [{alternative.knob: value} for value in alternative.values]
    body_rate = float(best.get(BODY_RATE, start.optimiser.body_learning_rate))
    return [{BODY_RATE: body_rate * float(factor)} for factor in alternative.values]


def trial_row(model: str, alternative: Alternative, settings: Settings, number: int, num_tokens: int) -> PlannedRow:
    """Name a trial."""
    shared = {"training.max_test_tokens": UNREAD_TEST}
    if num_tokens:
        shared["training.max_train_tokens"] = num_tokens
    place = f"{TRIALS}/{model}-{alternative.name}-{number}"
    return PlannedRow(model, alternative.loss, written({**shared, **settings}), place)


def final_row(model: str, alternative: Alternative, settings: Settings, seed: int) -> PlannedRow:
    """Name a final run."""
    place = f"{model}-{alternative.name}-seed{seed}"
    return PlannedRow(model, alternative.loss, written({**settings, "training.seed": seed}), place)


def begun_runs(out: Path) -> list[Path]:
    """List the trials and the final runs of a comparison that have begun."""
    return sorted(
        found.parent for pattern in (f"{TRIALS}/*", "*-seed*") for found in out.glob(f"{pattern}/summary.json")
    )


def written(settings: Settings) -> tuple[str, ...]:
    """Write settings as `--set` takes them."""
    return tuple(f"{name}={json.dumps(value)}" for name, value in settings.items())


def valid_perplexity(path: Path) -> float:
    """Read the lowest validation PPLf of a run; infinite where it diverged or failed."""
    lowest = read_metrics(path).lowest_ppl_f if is_finished(path) else None
    return math.inf if lowest is None else lowest


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of an experiment, which has no fields where there is none."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found
