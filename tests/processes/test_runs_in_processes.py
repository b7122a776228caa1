"""Runs in many processes: saved in some number, continued in another, killed on the way, and equal to unbroken ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from command import Command
from torch import Tensor

from bnce import Corpus
from bnce.machine.processes import World
from bnce.runs.checkpoint import read_model
from bnce.runs.directory import MODEL_FILE
from bnce.runs.metrics import read_metrics
from tests.processes.run_in_processes import config, in_processes, train
from tests.small_corpus import small_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A text of six steps per epoch."""
    return small_corpus(tmp_path_factory.mktemp("text") / "corpus", num_train=1_500)


@pytest.fixture(scope="module")
def unbroken(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process from its start to its end."""
    path = tmp_path_factory.mktemp("unbroken") / "run"
    assert train(World(), str(corpus.directory), str(path)) == "finished"
    return path


def model_of(path: Path) -> dict[str, Tensor]:
    """Read the best model of a run."""
    return read_model(path / MODEL_FILE)[0]


def assert_equal(path: Path, other: Path) -> None:
    """Two runs ended with the same models and figures."""
    for name, tensor in model_of(other).items():
        assert torch.equal(model_of(path)[name], tensor), name
    figures = [[(one["step"], one["tokens"], one["lr"]) for one in read_metrics(run).records] for run in (path, other)]
    assert figures[0] == figures[1]
    for one, expected in zip(read_metrics(path).records, read_metrics(other).records, strict=True):
        assert one["ppl_f"] == pytest.approx(expected["ppl_f"], rel=1e-6)  # scores are float32
    sentences = [json.loads((run / "evaluation.json").read_text())["by_sentence"] for run in (path, other)]
    assert sentences[0] == pytest.approx(sentences[1], rel=1e-5)


def test_saved_by_two_and_continued_by_others(corpus: Corpus, unbroken: Path, tmp_path: Path, bnce: Command) -> None:
    """A state is read by any number of processes, to the last bit."""
    run = tmp_path / "run"
    assert in_processes(2, tmp_path / "meeting", str(corpus.directory), str(run), stop_at=8) == ["stopped"] * 2
    assert bnce("info", run, "--check").status == 0
    for size in (1, 3, 4):
        again = tmp_path / f"again-{size}"
        shutil.copytree(run, again)
        if size == 1:
            assert train(World(), str(corpus.directory), str(again)) == "finished"
        else:
            said = in_processes(size, tmp_path / f"meeting-{size}", str(corpus.directory), str(again))
            assert said == ["finished"] * size
        assert_equal(again, unbroken)


@pytest.mark.parametrize("die", ["step", "save"])
def test_a_killed_process_loses_nothing(die: str, corpus: Corpus, unbroken: Path, tmp_path: Path) -> None:
    """The others end with a sentence, and the run continues from its newest whole state to the same end."""
    run = tmp_path / "run"
    settings = config(checkpoint_seconds=1e-6)  # after every step
    said = in_processes(3, tmp_path / "meeting", str(corpus.directory), str(run), die=die, settings=settings)
    assert len(said) == 2
    assert all("Another process of the run has ended" in told for told in said)
    assert in_processes(2, tmp_path / "again", str(corpus.directory), str(run)) == ["finished"] * 2
    assert_equal(run, unbroken)


def test_rows_of_choices_are_trained_by_two_processes_and_one(corpus: Corpus, tmp_path: Path, bnce: Command) -> None:
    """A run that two processes began ends with one process as if that had been alone."""
    settings, text = config("adaptive-softmax"), str(corpus.directory)
    assert train(World(), text, str(tmp_path / "alone"), settings=settings) == "finished"
    run = tmp_path / "run"
    said = in_processes(2, tmp_path / "meeting", text, str(run), stop_at=8, settings=settings)
    assert said == ["stopped"] * 2
    assert bnce("info", run, "--check").status == 0
    assert train(World(), text, str(run)) == "finished"
    assert_equal(run, tmp_path / "alone")
