"""The paper's tables as experiments: every row is a run, trained as `bnce train` would, and skipped once it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from bnce import files
from bnce.corpus.manifest import MANIFEST_FILE
from bnce.corpus.store import Corpus
from bnce.errors import BusyError, DiskFullError, UserError, argument, unknown_name
from bnce.machine.devices import release_memory
from bnce.runs.checkpoint import remove_states
from bnce.runs.directory import MODEL_FILE, Run, hold_run, is_finished, read_status, read_summary
from bnce.runs.resuming import check_corpus, check_same_settings
from bnce.settings import RunConfig
from bnce.training.advice import check_trainable
from bnce.training.recorder import Observer
from bnce.training.run import run_training

# What a table's rows are trained with, unless another recipe is named: `ltcb` and `obwb` are the paper's own.
TABLE_MODELS = ("ffnn", "rnn", "relu-rnn", "lstm", "relu-lstm")
TABLE_LOSSES = ("softmax", "snce", "bnce", "chunk-bnce")
# A feed-forward model carries no state from chunk to chunk, so its streams cannot be told apart. The paper could not
# run the softmax over 0.8M words: one row shows what it costs.
WITHOUT_ROW = {
    "ltcb": ("ffnn-chunk-bnce",),
    "obwb": ("ffnn-chunk-bnce", "ffnn-softmax", "rnn-softmax", "relu-rnn-softmax", "lstm-softmax"),
}
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
    rows = [PlannedRow(model, loss) for model in TABLE_MODELS for loss in TABLE_LOSSES]
    return [row for row in rows if row.name not in WITHOUT_ROW[table]]


def train_rows(
    rows: list[PlannedRow],
    out: Path,
    make_config: Callable[[PlannedRow], RunConfig],
    corpus: Corpus,
    device: torch.device,
    watch: Callable[[RunConfig], AbstractContextManager[Observer]],
    *,
    command: str = "",
    keep_models: bool = True,
) -> Outcome:
    """Train the rows that are not done, in this process.

    What is wrong with any of them is told before the first is trained. A finished row keeps its model, or only its
    figures, but nothing to resume from. A row that fails, such as one that diverges or does not fit into the GPU, is
    left behind; one that has diverged is not trained again, since it would again.

    Several processes can work on one experiment, each on a GPU of its own: a row that another process is training waits
    for that one.
    """
    configs = _check_rows(rows, out, make_config, corpus)
    files.make_directory(out)  # where it cannot be made, that is told once and not for every row
    failed: dict[str, str] = {}
    for row, config in configs.items():
        path = out / row.name
        try:
            with files.one_maker(path):
                resume = (path / "config.toml").is_file()
                run = Run.open(path) if resume else Run.create(path, config, corpus)
            with hold_run(path):
                if not is_settled(path):  # looked at only now: other processes may be at work, too
                    with watch(config) as observer:
                        run_training(run, corpus, device, observer, resume=resume, command=command)
                tidy_up(path, keep_models)
        except BusyError:
            continue
        except DiskFullError:
            raise  # it would stop the others, too
        except (UserError, OSError) as error:
            failed[row.name] = str(error)
        release_memory(device)
    return find_outcome(rows, out, failed)


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


def _check_rows(
    rows: list[PlannedRow],
    out: Path,
    make_config: Callable[[PlannedRow], RunConfig],
    corpus: Corpus,
) -> dict[PlannedRow, RunConfig]:
    """Make the rows' settings, and refuse those that cannot be trained."""
    for file, kind in ((MANIFEST_FILE, "a corpus"), ("config.toml", "a run")):
        if (out / file).is_file():
            raise UserError(
                f"The output '{out}' is {kind}, because it has a {file}: give {argument('out')} a directory of its own."
            )
    remedy = f": repeat its settings, give another {argument('out')}, or remove it."
    configs: dict[PlannedRow, RunConfig] = {}
    for row in rows:
        path, configs[row] = out / row.name, make_config(row)
        check_trainable(configs[row], corpus)
        if (path / "config.toml").is_file():  # it was begun, or even finished
            run = Run.open(path)
            # A corpus that was moved is known by its words and the digests of its splits.
            check_same_settings(run.config, configs[row], path, remedy)
            check_corpus(run, corpus)
    return configs


def tidy_up(path: Path, keep_models: bool) -> None:
    """Drop what a finished row does not keep, also where a process was killed before it could."""
    if is_finished(path):
        remove_states(path)
        if not keep_models and (path / MODEL_FILE).exists():
            # Said first, so that nobody takes it for lost.
            files.write_json(path / "summary.json", {**read_summary(path), "model_removed": True})
            (path / MODEL_FILE).unlink()
