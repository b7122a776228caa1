"""Losses that are exactly normalised, from one command to the next: what works with them, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small_corpus import Watcher, small_config, small_corpus
from typer.testing import CliRunner

import bnce as package
from bnce import Corpus, UserError
from bnce.cli import app
from bnce.evaluation.evaluate import evaluate
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import load_model
from bnce.training.plan import create_run
from bnce.training.run import run_training
from tests.training.test_resume import assert_the_same_to_the_bit, train_in_pieces

LOSS = "adaptive-softmax"


def bnce(*arguments: object) -> str:
    """Run a command that must succeed, and give what it printed."""
    outcome = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False, env={"COLUMNS": "80"})
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def refused(*arguments: object) -> str:
    outcome = CliRunner().invoke(app, [*map(str, arguments)])
    assert isinstance(outcome.exception, UserError), outcome.output
    return str(outcome.exception)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return small_corpus(tmp_path_factory.mktemp("corpora") / "small", num_train=1003)


@pytest.fixture(scope="module")
def run(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with one."""
    out = tmp_path_factory.mktemp("runs") / LOSS
    sizes = ("model.embedding_size=6", "model.hidden_size=8", "training.batch_size=8", "training.num_steps=5")
    settings = (*sizes, "training.epochs=2", "optimiser.name=rowwise-adam")
    options = [word for setting in settings for word in ("--set", setting)]
    kinds = ("--model", "lstm", "--loss", LOSS, "--corpus", corpus.directory, "--out", out)
    bnce("train", "wiki", *kinds, *options, "--device", "cpu", "--json")
    return out


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("w3 w4 w29\n\nw5 zebra w6\n", encoding="utf-8")
    return path


def test_stopped_and_resumed(tmp_path: Path, corpus: Corpus) -> None:
    sections: Any = {"loss": {"name": LOSS}, "optimiser": {"name": "rowwise-adam"}}
    config = small_config(corpus, **sections, training={"epochs": 1, "evaluations_per_epoch": 3})
    unbroken = create_run(tmp_path / "unbroken", config, corpus)
    run_training(unbroken, corpus, torch.device("cpu"), Watcher())
    broken = create_run(tmp_path / "broken", config, corpus)
    train_in_pieces(broken, corpus, [3, 20])  # between epochs: tests/training/test_resume.py
    assert_the_same_to_the_bit(broken, unbroken)


def test_both_perplexities_are_one(run: Path, corpus: Corpus) -> None:
    record = json.loads(bnce("evaluate", run, "--corpus", corpus.directory, "--device", "cpu", "--json"))
    assert record["ppl_n"] == record["ppl_f"] < len(corpus.vocabulary)
    assert (record["log_z"], record["log_z_mean"], record["log_z_std"]) == (0, 0, 0)
    first = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert first["ppl_f"] > record["ppl_f"] * 0.9
    page = bnce("evaluate", run, "--corpus", corpus.directory, "--device", "cpu")
    assert f"PPLn = PPLf {record['ppl_f']:.2f}  exactly normalised by the output layer;" in page
    assert "ln Z" not in page
    assert "with the softmax" not in page


def test_scores_are_log_probabilities_in_both_modes(run: Path, text: Path) -> None:
    scored = [bnce("score", run, text, "--mode", mode, "--device", "cpu") for mode in ("unnormalised", "normalised")]
    assert scored[0] == scored[1]
    model = package.load(str(run))
    for normalised in (False, True):
        found = model.next_words("w3 w4", len(model.vocabulary), normalised=normalised)
        assert math.fsum(word.prob for word in found) == pytest.approx(1, abs=1e-5)


def test_texts_are_generated(run: Path) -> None:
    for options in ((), ("--temperature", 0), ("--top-k", 3)):
        record = json.loads(bnce("generate", run, "--max-words", 4, "--device", "cpu", "--json", *options))
        assert record


def test_lists_are_rescored(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("jiwer")
    (tmp_path / "nbest").write_text("x-1 w3 w4\nx-2 w3\ny-1 w9\n", encoding="utf-8")
    assert len(bnce("rescore", run, tmp_path / "nbest").splitlines()) == 2


def test_a_server_answers(run: Path) -> None:
    from starlette.testclient import TestClient

    from bnce.scoring.run_model import load_run
    from bnce.serve.app import make_app

    served: Any = make_app(load_run(run), "run")
    with TestClient(served, "http://localhost") as client:
        answer = client.post("/score", json={"sentences": ["w3 w4"], "mode": "unnormalised", "exact": True})
        assert answer.status_code == 200, answer.text
        found = client.post("/next", json={"prompt": "w3", "k": 5})
        assert found.status_code == 200, found.text


def test_compare_and_info_describe_it(run: Path) -> None:
    (row,) = json.loads(bnce("compare", run, "--json"))["rows"]
    assert row["label"] == "LSTM (adaptive softmax)"
    assert row["ppl_n"] == row["ppl_f"]
    record = json.loads(bnce("info", run, "--json"))
    assert record["settings"]["loss"]["name"] == LOSS
    model = load_model(RunDirectory.open(run))
    assert record["num_parameters_by_part"] == model.num_parameters_by_part
    assert record["num_parameters"] == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("rows", ["float32", "bf16", "int8"])
def test_safetensors_are_a_run(run: Path, rows: str, corpus: Corpus, tmp_path: Path) -> None:
    bnce("export", run, "--to", "safetensors", "--rows", rows, "--out", tmp_path / "out")
    ids = corpus.split("test")
    before, after = (evaluate(load_model(RunDirectory.open(path)), ids).ppl_f for path in (run, tmp_path / "out"))
    assert after == pytest.approx(before, rel=0 if rows == "float32" else 0.01)


@pytest.mark.parametrize("target", ["onnx", "transformers"])
def test_other_programs_do_not_know_its_layer(run: Path, target: str, tmp_path: Path) -> None:
    told = refused("export", run, "--to", target, "--out", tmp_path / "out")
    assert f"whose output layer cannot be exported to {target}: export its weights alone, as safetensors." in told


def test_its_words_stay(run: Path, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("yak\n", encoding="utf-8")
    told = refused("vocab", run, "--out", tmp_path / "changed", "--add", tmp_path / "words")
    assert "words cannot be added after training" in told


@pytest.mark.parametrize("loss", ["bnce", "own"])
def test_no_run_starts_from_it(run: Path, corpus: Corpus, loss: str, tmp_path: Path) -> None:
    options = ("--corpus", corpus.directory, "--out", tmp_path / "new", "--device", "cpu")
    told = refused(
        "train", "wiki", "--model", "lstm", "--loss", LOSS if loss == "own" else loss, "--init", run, *options
    )
    assert f"A run with the loss {LOSS} cannot start from another run, and no run from it" in told
