"""The grid runner: the paper's rows, done ones skipped, interrupted ones continued, a budget shared."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from command import ctrl_c_after_step
from small_corpus import Watcher, small_config, small_corpus

from bnce import Corpus, UserError, files
from bnce.errors import DiskFullError, DivergedError, OutOfMemoryError
from bnce.runs.checkpoint import state_files
from bnce.runs.directory import MODEL_FILE, Run, is_finished, read_status
from bnce.runs.metrics import read_metrics
from bnce.runs.model_file import load_model
from bnce.settings import RunConfig
from bnce.training import paper_tables
from bnce.training.paper_tables import Outcome, PlannedRow, table_rows, train_rows
from bnce.training.run import run_training
from bnce.training.trainer import Trainer

CPU = torch.device("cpu")
ROWS = [PlannedRow("rnn", "softmax"), PlannedRow("rnn", "bnce"), PlannedRow("ffnn", "bnce")]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return small_corpus(tmp_path_factory.mktemp("experiment") / "corpus", num_train=403)


class Experiment:
    def __init__(self, corpus: Corpus, out: Path) -> None:
        self.corpus, self.out = corpus, out
        self.trained: list[str] = []

    def config(self, row: PlannedRow) -> RunConfig:
        return small_config(self.corpus, model={"name": row.model}, loss={"name": row.loss})

    @contextlib.contextmanager
    def watch(self, config: RunConfig) -> Iterator[Watcher]:
        self.trained.append(f"{config.model.name}-{config.loss.name}")
        yield Watcher()

    def run(self, **options: object) -> Outcome:
        return self.run_rows(ROWS, **options)

    def run_rows(self, rows: list[PlannedRow], **options: object) -> Outcome:
        return train_rows(rows, self.out, self.config, self.corpus, CPU, self.watch, **options)  # type: ignore


def test_tables_are_the_papers_with_chunk_bnce_added() -> None:
    ltcb, obwb = table_rows("ltcb"), table_rows("obwb")
    assert [row.name for row in ltcb[:4]] == ["ffnn-softmax", "ffnn-snce", "ffnn-bnce", "rnn-softmax"]
    assert len(ltcb) == 5 * 3 + 4
    assert [row for row in obwb if row.loss == "softmax"] == [PlannedRow("relu-lstm", "softmax")]
    assert len(obwb) == 5 * 2 + 1 + 4
    with pytest.raises(UserError, match=r"Unknown table 'ltbc'.*Did you mean 'ltcb'"):
        table_rows("ltbc")


def test_rows_that_are_done_are_skipped(corpus: Corpus, tmp_path: Path) -> None:
    experiment = Experiment(corpus, tmp_path)
    assert experiment.run().finished
    assert experiment.trained == [row.name for row in ROWS]
    assert all((tmp_path / row.name / "evaluation.json").is_file() for row in ROWS)
    assert experiment.run().finished
    assert experiment.trained == [row.name for row in ROWS]


def test_a_row_without_its_model_is_neither_used_nor_trained_anew(corpus: Corpus, tmp_path: Path) -> None:
    assert Experiment(corpus, tmp_path).run(keep_models=False).finished
    run = Run.open(tmp_path / "rnn-bnce")
    before = {path.name: path.read_bytes() for path in run.path.iterdir() if path.is_file()}
    with pytest.raises(UserError, match="has no model: train it up to its first"):
        load_model(run)
    with pytest.raises(UserError, match="has no state to resume from"):
        run_training(run, corpus, CPU, Watcher(), resume=True)
    assert {path.name: path.read_bytes() for path in run.path.iterdir() if path.is_file()} == before


def test_an_interrupted_experiment_goes_on_to_the_same_numbers(corpus: Corpus, tmp_path: Path) -> None:
    whole, broken = Experiment(corpus, tmp_path / "whole"), Experiment(corpus, tmp_path / "broken")
    assert whole.run().finished
    with ctrl_c_after_step(24), pytest.raises(KeyboardInterrupt):  # within the second row
        broken.run()
    assert broken.trained == ["rnn-softmax", "rnn-bnce"]
    assert [is_finished(tmp_path / "broken" / row.name) for row in ROWS] == [True, False, False]
    assert broken.run().finished
    assert broken.trained == ["rnn-softmax", "rnn-bnce", "rnn-bnce", "ffnn-bnce"]
    for row in ROWS:
        found, expected = ((tmp_path / name / row.name / "evaluation.json").read_text() for name in ("broken", "whole"))
        assert found == expected


@pytest.mark.parametrize("is_finished_first", [True, False])
def test_a_row_with_other_settings_is_refused(corpus: Corpus, tmp_path: Path, is_finished_first: bool) -> None:
    """Whether it is done or not: a table of rows that were trained differently would say nothing of it."""
    experiment = Experiment(corpus, tmp_path)
    if is_finished_first:
        experiment.run()
    else:
        with ctrl_c_after_step(2), pytest.raises(KeyboardInterrupt):
            experiment.run()
    experiment.trained.clear()
    plain = experiment.config
    for changed, difference in (
        ({"recipe": "other"}, "recipe small, not other"),
        ({"training": msgspec.structs.replace(plain(ROWS[0]).training, epochs=3)}, "training.epochs 2.0, not 3.0"),
    ):
        experiment.config = lambda row, changed=changed: msgspec.structs.replace(plain(row), **changed)  # type: ignore
        with pytest.raises(UserError, match=rf"rnn-softmax' was started with other settings \({difference}\): repeat"):
            experiment.run()
    assert experiment.trained == []


def test_a_moved_corpus_is_the_same_and_another_text_is_not(corpus: Corpus, tmp_path: Path) -> None:
    experiment = Experiment(corpus, tmp_path / "out")
    assert experiment.run().finished
    shutil.copytree(corpus.directory, tmp_path / "moved")
    experiment.corpus = Corpus.open(tmp_path / "moved")
    assert experiment.run().finished
    experiment.corpus = small_corpus(tmp_path / "other", num_train=399)
    with pytest.raises(UserError, match="has another training text than the run"):
        experiment.run()


def test_what_is_wrong_with_any_row_is_told_before_the_first_is_trained(corpus: Corpus, tmp_path: Path) -> None:
    experiment = Experiment(corpus, tmp_path)
    plain = experiment.config

    def last_is_wrong(row: PlannedRow) -> RunConfig:
        training = msgspec.structs.replace(plain(row).training, batch_size=8 if row != ROWS[-1] else 100_000)
        return msgspec.structs.replace(plain(row), training=training)

    experiment.config = last_is_wrong  # type: ignore[method-assign]
    with pytest.raises(UserError, match="batch_size"):
        experiment.run()
    assert experiment.trained == []
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_stops_all_rows(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> bool:
        raise DiskFullError("The disk is full.", "free some space", "go on")

    monkeypatch.setattr(Trainer, "train", full)
    experiment = Experiment(corpus, tmp_path)
    with pytest.raises(DiskFullError):
        experiment.run()
    assert experiment.trained == ["rnn-softmax"]


@pytest.mark.parametrize(
    ("error", "tried_again"),
    [
        (DivergedError("The loss is no longer finite."), False),
        (OutOfMemoryError("The GPU's memory is full."), True),
        (UserError("Its states are damaged."), True),
        (OSError(5, "Input/output error"), True),
    ],
)
def test_a_row_that_fails_does_not_hold_up_the_others(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, tried_again: bool
) -> None:
    train = Trainer.train

    def fail(trainer: Trainer, should_stop: Callable[[], bool]) -> bool:
        if trainer.config.model.name == "rnn" and trainer.config.loss.name == "bnce":
            raise error
        return train(trainer, should_stop)

    monkeypatch.setattr(Trainer, "train", fail)
    experiment = Experiment(corpus, tmp_path)
    outcome = experiment.run()
    assert outcome == Outcome((), {"rnn-bnce": str(error)})
    assert not outcome.finished
    assert [is_finished(tmp_path / row.name) for row in ROWS] == [True, False, True]
    experiment.trained.clear()
    outcome = experiment.run()
    assert list(outcome.failed) == ["rnn-bnce"]
    assert experiment.trained == (["rnn-bnce"] if tried_again else [])
    if not tried_again:
        assert outcome.failed["rnn-bnce"] == "It diverged before; remove its directory to train it again."


def test_several_processes_share_an_experiment(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has begun the second row, finishes the third, and lays out the first in the very moment that we do."""
    experiment, other, one_maker = Experiment(corpus, tmp_path), Experiment(corpus, tmp_path), files.one_maker
    Run.create(tmp_path / "rnn-bnce", experiment.config(ROWS[1]), corpus)

    def later(path: Path) -> contextlib.AbstractContextManager[None]:
        monkeypatch.setattr(files, "one_maker", one_maker)
        other.run_rows(ROWS[2:])
        Run.create(path, experiment.config(ROWS[0]), corpus)
        return one_maker(path)

    monkeypatch.setattr(files, "one_maker", later)
    with files.held(tmp_path / "rnn-bnce", "busy"):
        outcome = experiment.run()
    assert outcome == Outcome(("rnn-bnce",), {})
    assert (experiment.trained, other.trained) == (["rnn-softmax"], ["ffnn-bnce"])
    assert experiment.run().finished


@pytest.mark.parametrize("status", ["finished", "diverged"])
def test_a_row_that_another_process_settles_meanwhile_is_not_trained_again(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """It ends, and is tidied up, after we have looked at it and before we hold it."""
    experiment, other, hold = Experiment(corpus, tmp_path), Experiment(corpus, tmp_path), paper_tables.hold_run
    begun = Run.create(tmp_path / "rnn-softmax", experiment.config(ROWS[0]), corpus)

    def hold_late(path: Path) -> contextlib.AbstractContextManager[bool]:
        if path == begun.path:
            monkeypatch.setattr(paper_tables, "hold_run", hold)
            if status == "finished":
                other.run_rows(ROWS[:1])
            else:
                files.write_json(begun.path / "summary.json", {"status": status})
        return hold(path)

    monkeypatch.setattr(paper_tables, "hold_run", hold_late)
    outcome = experiment.run()
    assert outcome.waiting == ()
    assert list(outcome.failed) == ([] if status == "finished" else ["rnn-softmax"])
    assert not state_files(begun.path)
    assert read_status(begun.path) == status
    assert len(read_metrics(begun.path).records) == (2 if status == "finished" else 0)
    assert other.trained == (["rnn-softmax"] if status == "finished" else [])


def test_what_a_killed_process_left_of_a_finished_row_is_removed(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr("bnce.training.paper_tables.tidy_up", lambda *_: None)
        assert Experiment(corpus, tmp_path).run().finished
    assert all(state_files(tmp_path / row.name) for row in ROWS)
    assert Experiment(corpus, tmp_path).run(keep_models=False).finished
    assert not any(state_files(tmp_path / row.name) for row in ROWS)
    assert not any((tmp_path / row.name / MODEL_FILE).exists() for row in ROWS)
