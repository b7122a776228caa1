"""The paper's tables as experiments: every row is a run, trained as `bnce train` would, and skipped once it is done."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from bnce.checkpoint import MODEL_FILE, remove_states
from bnce.config import MODEL_NAMES, RunConfig
from bnce.corpus.store import Corpus
from bnce.errors import UserError, unknown_name
from bnce.run_directory import RunDirectory, is_finished
from bnce.trainer import Observer
from bnce.training_run import create_run, run_training

# What a table's rows are trained with, unless another recipe is named: `ltcb` and `obwb` are the paper's own.
RECIPES = {"ltcb": "wiki", "obwb": "news"}


@dataclass(frozen=True)
class Row:
    """One row of a table: a model and a loss."""

    model: str
    loss: str

    @property
    def name(self) -> str:
        """Name its run directory."""
        return f"{self.model}-{self.loss}"


def table_rows(table: str) -> list[Row]:
    """List the rows of the paper's Table 2 or 4, and ours: chunk B-NCE where there is a stream to leave out."""
    if table not in RECIPES:
        raise unknown_name("table", table, RECIPES)
    rows = []
    for model in MODEL_NAMES:
        # The paper could not run the softmax over 0.8M words; one model shows what it costs.
        with_softmax = table == "ltcb" or model == "relu-lstm"
        losses = ("softmax",) * with_softmax + ("snce", "bnce") + ("chunk-bnce",) * (model != "ffnn")
        rows += [Row(model, loss) for loss in losses]
    return rows


def run_experiment(
    rows: list[Row],
    out: Path,
    make_config: Callable[[Row], RunConfig],
    corpus: Corpus,
    device: torch.device,
    watch: Callable[[RunConfig], AbstractContextManager[Observer]],
    *,
    budget_seconds: float | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    command: str = "",
    keep_models: bool = True,
) -> bool:
    """Train the rows that are not done; returns whether all of them are now.

    A budget is shared fairly: a row may use what is left of it, divided by the rows that are left. A finished row keeps
    its model, or only its figures, but nothing to resume from.
    """
    waiting = [row for row in rows if not is_finished(out / row.name)]
    deadline = None if budget_seconds is None else time.monotonic() + budget_seconds
    for number, row in enumerate(waiting):
        if should_stop():
            return False
        stop_row = _at_time(should_stop, deadline, num_left=len(waiting) - number)
        run, resume = _open_or_create(out / row.name, make_config(row), corpus, device)
        with watch(run.config) as observer:
            run_training(
                run,
                corpus,
                device,
                observer,
                resume=resume,
                should_stop=stop_row,
                command=command,
            )
        if is_finished(run.path):
            remove_states(run.path)
            if not keep_models:
                (run.path / MODEL_FILE).unlink(missing_ok=True)
        gc.collect()  # a captured step keeps its memory until its owner is collected
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return all(is_finished(out / row.name) for row in rows)


def _at_time(should_stop: Callable[[], bool], deadline: float | None, num_left: int) -> Callable[[], bool]:
    """Also stop when a row has used its share of the time up to the deadline."""
    if deadline is None:
        return should_stop
    now = time.monotonic()
    ends_at = now + max(0.0, deadline - now) / num_left
    return lambda: should_stop() or time.monotonic() >= ends_at


def _open_or_create(path: Path, config: RunConfig, corpus: Corpus, device: torch.device) -> tuple[RunDirectory, bool]:
    if not (path / "config.toml").is_file():
        return create_run(path, config, corpus, device), False
    run = RunDirectory.open(path)
    if run.config != config:
        raise UserError(f"The row '{path}' was started with other settings: give another --out, or remove it.")
    return run, True
