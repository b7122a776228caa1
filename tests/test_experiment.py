"""The grid runner: the paper's rows, done ones skipped, interrupted ones continued, a budget shared."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_corpus import Watcher, small_config, small_corpus

from bnce.config import RunConfig
from bnce.corpus.store import Corpus
from bnce.errors import UserError
from bnce.experiment import Row, run_experiment, table_rows
from bnce.run_directory import RunDirectory, is_finished
from bnce.step import TrainingStep
from bnce.training_run import run_training

CPU = torch.device("cpu")
ROWS = [Row("rnn", "softmax"), Row("rnn", "bnce"), Row("ffnn", "bnce")]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return small_corpus(tmp_path_factory.mktemp("experiment") / "corpus")


class Experiment:
    def __init__(self, corpus: Corpus, out: Path) -> None:
        self.corpus, self.out = corpus, out
        self.trained: list[str] = []

    def config(self, row: Row) -> RunConfig:
        config = small_config(self.corpus)
        return dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, name=row.model),
            loss=dataclasses.replace(config.loss, name=row.loss),
        )

    @contextlib.contextmanager
    def watch(self, config: RunConfig) -> Iterator[Watcher]:
        self.trained.append(f"{config.model.name}-{config.loss.name}")
        yield Watcher()

    def run(self, **options: object) -> bool:
        return run_experiment(ROWS, self.out, self.config, self.corpus, CPU, self.watch, **options)  # type: ignore


def test_tables_are_the_papers_with_chunk_bnce_added() -> None:
    ltcb, obwb = table_rows("ltcb"), table_rows("obwb")
    assert [row.name for row in ltcb[:4]] == ["ffnn-softmax", "ffnn-snce", "ffnn-bnce", "rnn-softmax"]
    assert len(ltcb) == 5 * 3 + 4
    assert [row for row in obwb if row.loss == "softmax"] == [Row("relu-lstm", "softmax")]
    assert len(obwb) == 5 * 2 + 1 + 4
    with pytest.raises(UserError, match=r"Unknown table 'ltbc'.*Did you mean 'ltcb'"):
        table_rows("ltbc")


def test_rows_that_are_done_are_skipped(corpus: Corpus, tmp_path: Path) -> None:
    experiment = Experiment(corpus, tmp_path)
    assert experiment.run()
    assert experiment.trained == [row.name for row in ROWS]
    assert all((tmp_path / row.name / "evaluation.json").is_file() for row in ROWS)
    assert experiment.run()
    assert experiment.trained == [row.name for row in ROWS]


def test_a_row_without_its_model_is_neither_used_nor_trained_anew(corpus: Corpus, tmp_path: Path) -> None:
    assert Experiment(corpus, tmp_path).run(keep_models=False)
    run = RunDirectory.open(tmp_path / "rnn-bnce")
    before = {path.name: path.read_bytes() for path in run.path.iterdir() if path.is_file()}
    with pytest.raises(UserError, match="has its figures but no model any more"):
        run.load_model()
    with pytest.raises(UserError, match="is finished and kept no state to resume from: train with another --out"):
        run_training(run, corpus, CPU, Watcher(), resume=True)
    assert {path.name: path.read_bytes() for path in run.path.iterdir() if path.is_file()} == before


def test_an_interrupted_experiment_goes_on_to_the_same_numbers(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = Experiment(corpus, tmp_path / "whole"), Experiment(corpus, tmp_path / "broken")
    assert whole.run()
    call, num_steps = TrainingStep.__call__, 0

    def counting(*arguments: object) -> None:
        nonlocal num_steps
        call(*arguments)  # type: ignore[arg-type]
        num_steps += 1

    monkeypatch.setattr(TrainingStep, "__call__", counting)
    assert not broken.run(should_stop=lambda: num_steps >= 120)  # within the second row
    assert broken.trained == ["rnn-softmax", "rnn-bnce"]
    assert [is_finished(tmp_path / "broken" / row.name) for row in ROWS] == [True, False, False]
    assert broken.run()
    assert broken.trained == ["rnn-softmax", "rnn-bnce", "rnn-bnce", "ffnn-bnce"]
    for row in ROWS:
        found, expected = ((tmp_path / name / row.name / "evaluation.json").read_text() for name in ("broken", "whole"))
        assert found == expected


def test_a_budget_stops_every_row_at_its_share(corpus: Corpus, tmp_path: Path) -> None:
    experiment = Experiment(corpus, tmp_path)
    assert not experiment.run(budget_seconds=0.0)
    assert experiment.trained == [row.name for row in ROWS], "every row has its turn"
    assert not any(is_finished(tmp_path / row.name) for row in ROWS)
    assert experiment.run()


def test_a_row_with_other_settings_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    experiment = Experiment(corpus, tmp_path)
    assert not experiment.run(should_stop=iter([False, True, True, True]).__next__)
    plain = experiment.config
    experiment.config = lambda row: dataclasses.replace(plain(row), recipe="other")  # type: ignore[method-assign]
    with pytest.raises(UserError, match="was started with other settings"):
        experiment.run()
