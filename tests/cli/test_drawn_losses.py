"""Losses whose words are drawn once for a chunk, and the softmax with a penalty, from one command to the next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import call, run_command
from making import draws_all
from small_corpus import small_corpus
from small_training import train_small

from bnce import LOSSES, MODELS, Corpus
from tests.training.test_resume import assert_the_same_to_the_bit, train_in_pieces

NAMES = ["sampled-softmax", "self-normalised-softmax"]
SIZES = ("model.embedding_size=6", "model.hidden_size=8")
SETTINGS = (*SIZES, "training.batch_size=8", "training.num_steps=5", "training.epochs=1")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return small_corpus(tmp_path_factory.mktemp("corpora") / "small", num_train=1003)


# A loss sees hidden states and a body sees no loss, so each of them once is enough.
PAIRS = [(NAMES[place % len(NAMES)], body) for place, body in enumerate(MODELS)]


@pytest.mark.parametrize(("loss", "body"), PAIRS)
def test_from_one_command_to_the_next(tmp_path: Path, corpus: Corpus, loss: str, body: str) -> None:
    run, text = tmp_path / "run", tmp_path / "text"
    sizes = [f"model.{size}=6" for size in ("bottleneck_size",) if size in MODELS[body].__struct_fields__]
    options = [word for setting in (*SETTINGS, *sizes) for word in ("--set", setting)]
    kinds = ("--model", body, "--loss", loss, "--corpus", corpus.directory, "--out", run)
    run_command("train", "wiki", *kinds, *options, "--device", "cpu", "--json")
    record = run_command("evaluate", run, "--corpus", corpus.directory, "--device", "cpu", "--json").json
    assert 1 < record["ppl_f"] < 2 * len(corpus.vocabulary)
    run_command("export", run, "--to", "onnx", "--out", tmp_path / "out")
    described = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "out").glob("*.json")]
    told = [record["self_normalised"] for record in described if "self_normalised" in record]
    assert told == [LOSSES[loss]().normalises]
    text.write_text("w3 w4 w29\n", encoding="utf-8")
    assert "OOV: 0" in run_command("score", run, text, "--mode", "normalised", "--device", "cpu").stdout
    if LOSSES[loss]().normalises:
        assert record["ppl_n"] > 1
        assert run_command("score", run, text, "--device", "cpu").stdout
        return
    assert record["ppl_n"] is None
    refused = call("score", run, text, "--mode", "unnormalised", "--device", "cpu")
    assert refused.status == 2
    assert f"was trained with the loss {loss} and has no constant Z" in refused.stderr


@pytest.mark.parametrize("loss", NAMES)
def test_stopped_and_resumed(tmp_path: Path, corpus: Corpus, loss: str) -> None:
    settings: dict[str, object] = {"name": loss, **({"num_noise": 5} if draws_all(loss) else {})}
    if "replacement" in LOSSES[loss].__struct_fields__:
        settings |= {"noise": "log-uniform", "replacement": False}
    sections = {"loss": settings, "training": {"epochs": 1, "evaluations_per_epoch": 3}}
    train_small(tmp_path / "unbroken", corpus, **sections)
    train_in_pieces(tmp_path / "broken", corpus, [3, 20], sections)  # between epochs: tests/training/test_resume.py
    assert_the_same_to_the_bit(tmp_path / "broken", tmp_path / "unbroken")
