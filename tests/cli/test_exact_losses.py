"""Losses that are exactly normalised, from one command to the next: what works with them, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from command import Command, Refused, run_command
from run_files import metrics_of, sizes_of
from small_corpus import small_corpus
from small_training import train_small

import bnce as package
from bnce import Corpus
from tests.training.test_resume import assert_the_same_to_the_bit, train_in_pieces

LOSS = "adaptive-softmax"


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
    run_command("train", "wiki", *kinds, *options, "--device", "cpu")
    return out


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("w3 w4 w29\n\nw5 zebra w6\n", encoding="utf-8")
    return path


def test_stopped_and_resumed(tmp_path: Path, corpus: Corpus) -> None:
    sections: Any = {
        "loss": {"name": LOSS},
        "optimiser": {"name": "rowwise-adam"},
        "training": {"epochs": 1, "evaluations_per_epoch": 3},
    }
    train_small(tmp_path / "unbroken", corpus, **sections)
    train_in_pieces(tmp_path / "broken", corpus, [3, 20], sections)  # between epochs: tests/training/test_resume.py
    assert_the_same_to_the_bit(tmp_path / "broken", tmp_path / "unbroken")


def test_both_perplexities_are_one(bnce: Command, run: Path, corpus: Corpus) -> None:
    record = bnce("evaluate", run, "--corpus", corpus.directory, "--device", "cpu", "--json").json
    assert record["ppl_n"] == record["ppl_f"] < len(corpus.vocabulary)
    assert (record["log_z"], record["log_z_mean"], record["log_z_std"]) == (0, 0, 0)
    assert metrics_of(run)[0]["ppl_f"] > record["ppl_f"] * 0.9
    page = bnce("evaluate", run, "--corpus", corpus.directory, "--device", "cpu").stdout
    assert f"PPLn = PPLf {record['ppl_f']:.2f}  exactly normalised by the output layer;" in page
    assert "ln Z" not in page
    assert "with the softmax" not in page


def test_scores_are_log_probabilities_in_both_modes(bnce: Command, run: Path, text: Path) -> None:
    modes = ("unnormalised", "normalised")
    scored = [bnce("score", run, text, "--mode", mode, "--device", "cpu").stdout for mode in modes]
    assert scored[0] == scored[1] != ""
    model = package.load(str(run))
    for mode in modes:
        found = model.next_words("w3 w4", len(model.vocabulary), mode=mode)
        assert math.fsum(word.prob for word in found) == pytest.approx(1, abs=1e-5)


def test_texts_are_generated(bnce: Command, run: Path) -> None:
    for options in ((), ("--temperature", 0), ("--top-k", 3)):
        record = bnce("generate", run, "--max-words", 4, "--device", "cpu", "--json", *options).json
        assert record


def test_lists_are_rescored(bnce: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "nbest").write_text("x-1 w3 w4\nx-2 w3\ny-1 w9\n", encoding="utf-8")
    assert len(bnce("rescore", run, tmp_path / "nbest").stdout.splitlines()) == 2


def test_compare_and_info_describe_it(bnce: Command, run: Path) -> None:
    (row,) = bnce("compare", run, "--json").json["rows"]
    assert row["label"] == "LSTM (adaptive softmax)"
    assert row["ppl_n"] == row["ppl_f"]
    record = bnce("info", run, "--json").json
    assert record["settings"]["loss"]["name"] == LOSS
    sizes = sizes_of(run)
    del sizes["output.log_z"]  # no parameter of a layer that normalises itself
    parts = {part: sum(size for name, size in sizes.items() if name.startswith(part)) for part in ("body", "output.s")}
    assert record["num_parameters_by_part"] == {
        "embedding": sizes["embedding"],
        "body": parts["body"],
        "output_weight": sizes["output.weight"],
        "output_bias": sizes["output.bias"],
        "output_structure": parts["output.s"],
    }
    assert record["num_parameters"] == sum(sizes.values())


@pytest.mark.parametrize("rows", ["float32", "bf16", "int8"])
def test_safetensors_are_a_run(bnce: Command, run: Path, rows: str, corpus: Corpus, tmp_path: Path) -> None:
    assert bnce("export", run, "--to", "safetensors", "--rows", rows, "--out", tmp_path / "out").status == 0
    runs = (run, tmp_path / "out")
    before, after = (package.evaluate(path, corpus=corpus, split="test", device="cpu").ppl_f for path in runs)
    assert after == pytest.approx(before, rel=0 if rows == "float32" else 0.01)


@pytest.mark.parametrize("target", ["onnx", "transformers"])
def test_other_programs_do_not_know_its_layer(refused: Refused, run: Path, target: str, tmp_path: Path) -> None:
    told = refused("export", run, "--to", target, "--out", tmp_path / "out")
    assert f"whose output layer cannot be exported to {target}: export its weights alone, as safetensors." in told


def test_its_words_stay(refused: Refused, run: Path, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("yak\n", encoding="utf-8")
    told = refused("vocab", run, "--out", tmp_path / "changed", "--add", tmp_path / "words")
    assert "words cannot be added after training" in told


@pytest.mark.parametrize("loss", ["bnce", "own"])
def test_no_run_starts_from_it(refused: Refused, run: Path, corpus: Corpus, loss: str, tmp_path: Path) -> None:
    options = ("--corpus", corpus.directory, "--out", tmp_path / "new", "--device", "cpu")
    told = refused(
        "train", "wiki", "--model", "lstm", "--loss", LOSS if loss == "own" else loss, "--init", run, *options
    )
    assert f"A run with the loss {LOSS} cannot start from another run, and no run from it" in told
