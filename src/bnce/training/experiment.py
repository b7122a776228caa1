"""The paper's tables as experiments: every row is a run, trained as `bnce train` would, and skipped once it is done."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from bnce import files
from bnce.config import RunConfig
from bnce.corpus.manifest import MANIFEST_FILE, SPLITS
from bnce.corpus.store import Corpus
from bnce.errors import BusyError, DiskFullError, UserError, argument, unknown_name
from bnce.kinds.bodies import BODIES, Body
from bnce.kinds.losses import LOSSES, Loss
from bnce.machine.memory import release_memory
from bnce.runs.checkpoint import remove_states
from bnce.runs.directory import MODEL_FILE, Run, hold_run, is_finished, read_status, read_summary
from bnce.runs.resuming import check_corpus, check_same_settings, check_same_texts
from bnce.training.observer import Observer
from bnce.training.plan import check_trainable, create_run
from bnce.training.run import run_training

# What a table's rows are trained with, unless another recipe is named: `ltcb` and `obwb` are the paper's own.
RECIPES = {"ltcb": "wiki", "obwb": "news", "demo": "demo"}


@dataclass(frozen=True)
class PlannedRow:
    """One row of a table to be filled: a model and a loss."""

    model: str
    loss: str

    @property
    def name(self) -> str:
        """Name its run directory."""
        return f"{self.model}-{self.loss}"


@dataclass(frozen=True)
class Outcome:
    """What became of an experiment: the rows that wait for more time, and why others have no figures."""

    waiting: tuple[str, ...]
    failed: Mapping[str, str]

    @property
    def finished(self) -> bool:
        """Whether every row is done."""
        return not self.waiting and not self.failed


def table_rows(table: str) -> list[PlannedRow]:
    """List the rows of the demo, or of a table of the paper and ours: chunk B-NCE where a stream can be left out."""
    if table not in RECIPES:
        raise unknown_name("table", table, RECIPES)
    if table == "demo":
        return [PlannedRow("relu-lstm", loss) for loss in ("softmax", "snce", "bnce")]
    return [PlannedRow(body.name, loss.name) for body in BODIES for loss in LOSSES if _has_row(table, body, loss)]


def _has_row(table: str, body: Body, loss: Loss) -> bool:
    if table not in body.tables or table not in loss.tables:
        return False
    if loss.scores_all_words and table not in body.tables_with_softmax:
        return False
    return body.carries_state or not loss.whole_chunk


def train_rows(
    rows: list[PlannedRow],
    out: Path,
    make_config: Callable[[PlannedRow], RunConfig],
    corpus: Corpus,
    device: torch.device,
    watch: Callable[[RunConfig], AbstractContextManager[Observer]],
    note_failure: Callable[[str, str], None],
    *,
    command: str = "",
    keep_models: bool = True,
) -> None:
    """Train the rows that are not done, and note the names of those that fail, each with its reason.

    What is wrong with any of them is told before the first is trained. A finished row keeps its model, or only its
    figures, but nothing to resume from. A row that fails, such as one that diverges or does not fit into the GPU, is
    left behind; one that has diverged is not trained again, since it would again.

    Several processes can work on one experiment, each on a GPU of its own: a row that another process is training waits
    for that one.
    """
    configs = check_rows(rows, out, make_config, corpus, device)
    files.make_directory(out)  # where it cannot be made, that is told once and not for every row
    for row in rows:
        if is_finished(out / row.name):
            with contextlib.suppress(BusyError), hold_run(out / row.name):
                tidy_up(out / row.name, keep_models)

    def train(path: Path, config: RunConfig) -> None:
        resume = (path / "config.toml").is_file()
        try:
            run = Run.open(path) if resume else create_run(path, config, corpus, device)
        except UserError as error:
            if not resume and (path / "config.toml").is_file():
                raise BusyError(f"Another process has just started '{path}'.") from error
            raise
        with hold_run(path), watch(config) as observer:
            if not is_settled(path):  # by another process, while this one opened it
                run_training(run, corpus, device, observer, resume=resume, command=command)
            tidy_up(path, keep_models)

    for row in rows:
        # Looked at only now: other processes may be at work, too.
        if is_settled(out / row.name):
            continue
        try:
            train(out / row.name, configs[row])
        except BusyError:
            continue
        except DiskFullError:
            raise  # it would stop the others, too
        except (UserError, OSError) as error:
            note_failure(row.name, str(error))
        release_memory(device)


def find_outcome(rows: list[PlannedRow], out: Path, failed: Mapping[str, str] | None = None) -> Outcome:
    """See on the disk what became of the rows; `failed` are the reasons why some have just failed."""
    failed = dict(failed or {})
    for row in rows:
        if read_status(out / row.name) == "diverged":
            failed.setdefault(row.name, "It diverged before; remove its directory to train it again.")
    unfinished = [row.name for row in rows if not is_finished(out / row.name)]
    return Outcome(tuple(name for name in unfinished if name not in failed), failed)


def is_settled(path: Path) -> bool:
    """Tell whether a row needs no more training: it is finished, or would diverge again."""
    return read_status(path) in ("finished", "diverged")


def check_rows(
    rows: list[PlannedRow],
    out: Path,
    make_config: Callable[[PlannedRow], RunConfig],
    corpus: Corpus,
    device: torch.device,
) -> dict[PlannedRow, RunConfig]:
    """Make the rows' settings, and tell at once all that is wrong with them."""
    refuse_other_directories(out)
    configs: dict[PlannedRow, RunConfig] = {}
    wrong: list[str] = []
    for row in rows:
        try:
            configs[row] = make_config(row)
            _check_row(out / row.name, configs[row], corpus, device)
        except UserError as error:
            wrong.append(str(error))
    if wrong:
        # What is wrong with all of them is told once.
        raise UserError(" ".join(dict.fromkeys(wrong)))
    return configs


def refuse_other_directories(out: Path) -> None:
    """Refuse to put runs into a directory that is a corpus or a run itself."""
    for file, kind in ((MANIFEST_FILE, "a corpus"), ("config.toml", "a run")):
        if (out / file).is_file():
            raise UserError(
                f"The output '{out}' is {kind}, because it has a {file}: give {argument('out')} a directory of its own."
            )


def check_texts(paths: Iterable[Path], corpus: Corpus) -> None:
    """Refuse a corpus with another text, be it of test alone, than runs that stand in one table were begun with."""
    for path in paths:
        if (path / "config.toml").is_file():
            check_same_texts(Run.open(path), corpus, SPLITS)


def _check_row(path: Path, config: RunConfig, corpus: Corpus, device: torch.device) -> None:
    """Refuse a row that cannot be trained, or that was begun, or even finished, with something else."""
    check_trainable(config, corpus, device)
    if not (path / "config.toml").is_file():
        return
    run = Run.open(path)
    # A corpus that was moved is known by its words and the digests of its splits, below.
    check_same_settings(run.config, config, path, f"repeat its settings, give another {argument('out')}, or remove it.")
    check_corpus(run, corpus)


def tidy_up(path: Path, keep_models: bool) -> None:
    """Drop what a finished row does not keep, also where a process was killed before it could."""
    if is_finished(path):
        remove_states(path)
        if not keep_models and (path / MODEL_FILE).exists():
            # Said first, so that nobody takes it for lost.
            summary = {**read_summary(path), "model_removed": True}
            files.write_json(path / "summary.json", summary)
            (path / MODEL_FILE).unlink()
