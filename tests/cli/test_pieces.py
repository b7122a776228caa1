"""A corpus of pieces from the text to the last command that uses its run."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from small_corpus import VOCAB_SIZE

from bnce.cli import app
from bnce.corpus.store import Corpus
from bnce.corpus.vocabulary import END
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import load_model

from .conftest import Command, settings

NUM_PIECES = 280


@pytest.fixture(scope="session")
def piece_corpus(texts: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the corpus of pieces of the same texts, with the same words unknown."""
    out = tmp_path_factory.mktemp("corpora") / "pieces"
    valid, test = (str(texts / f"{name}.txt") for name in ("valid", "test"))
    options = ["--out", str(out), "--tokens", "bpe", "--vocab-size", str(NUM_PIECES), "--valid", valid, "--test", test]
    options += ["--known-words", str(corpus / "vocab.txt"), "--workers", "1"]
    app(["prepare", str(texts / "train.txt"), *options], standalone_mode=False)
    return out


@pytest.fixture(scope="session")
def pieced(piece_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a run over the pieces; nobody may change it."""
    out = tmp_path_factory.mktemp("runs") / "pieces"
    options = ["--corpus", str(piece_corpus), "--model", "relu-lstm", "--loss", "bnce", "--out", str(out)]
    options += ["--device", "cpu", *settings("optimiser.learning_rate=0.01")]
    app(["train", "wiki", *options], standalone_mode=False)
    return out


def log_probs(run: Path, ids: np.ndarray) -> np.ndarray:
    """Compute ln p of every piece of a text that is one stream, with the softmax."""
    network = load_model(RunDirectory.open(run))
    with torch.no_grad():
        hidden_TBD, _ = network(torch.tensor([END, *ids[:-1].tolist()]).unsqueeze(1), network.initial_state(1))
        every_NV = torch.log_softmax(network.output.all_scores(hidden_TBD[:, 0]).double(), dim=1)
    return every_NV[torch.arange(len(ids)), torch.from_numpy(ids.astype(np.int64))].numpy()


def test_both_corpora_are_of_the_same_words(corpus: Path, piece_corpus: Path, bnce: Command) -> None:
    of_words, of_pieces = (bnce("info", path, "--json", "--batch-size", 8).json for path in (corpus, piece_corpus))
    assert (of_words["unit"], of_pieces["unit"]) == ("word", "piece")
    for name, split in of_words["splits"].items():
        other = of_pieces["splits"][name]
        for key in ("num_words", "num_bytes", "num_oov", "unk_rate", "sentence_lengths"):
            assert split[key] == other[key], key
        assert split["num_words"] == split["num_tokens"] < other["num_tokens"]
        assert split["num_oov"] > 0
    printed = bnce("info", piece_corpus, "--batch-size", 8).stdout
    assert "most frequent pieces of train" in printed
    assert f"V = {len(Corpus.open(piece_corpus).vocabulary)} pieces" in printed


def test_perplexity_per_word_and_bits_per_byte(pieced: Path, piece_corpus: Path, bnce: Command) -> None:
    corpus = Corpus.open(piece_corpus)
    record = bnce("evaluate", pieced, "--max-words", 60, "--json").json
    spelt = corpus.vocabulary.spell(corpus.split("test").tolist())
    ids = corpus.vocabulary.encode(spelt[:60])
    total = log_probs(pieced, ids).sum()
    assert (record["num_words"], record["num_tokens"]) == (60, len(ids))
    assert record["ppl_f_word"] == pytest.approx(math.exp(-total / 60), rel=1e-5)
    assert record["ppl_f"] == pytest.approx(math.exp(-total / len(ids)), rel=1e-5)
    whole = bnce("evaluate", pieced, "--json").json
    assert whole["num_bytes"] == corpus.statistics["test"].num_bytes
    assert whole["bits_per_byte"] == pytest.approx(-whole["log10_prob_f"] / math.log10(2) / whole["num_bytes"])
    printed = bnce("evaluate", pieced).stdout
    assert f"per word: PPLn {whole['ppl_n_word']:.2f}, PPLf {whole['ppl_f_word']:.2f}" in printed
    assert f"{whole['bits_per_byte']:.4f} bits per byte" in printed
    assert "without what spelling <unk> would cost" in printed


def test_a_text_is_read_as_the_split_was(pieced: Path, trained: Path, texts: Path, bnce: Command) -> None:
    of_text = bnce("evaluate", pieced, "--text", texts / "test.txt", "--json").json
    of_split = bnce("evaluate", pieced, "--json").json
    assert [of_text[key] for key in of_text if key != "text"] == [of_split[key] for key in of_split if key != "split"]
    of_words = bnce("evaluate", trained, "--text", texts / "test.txt", "--json").json
    for key in ("num_words", "num_bytes", "num_oov"):
        assert of_text[key] == of_words[key], key
    assert of_words["ppl_f_word"] == of_words["ppl_f"]


def test_training_says_that_validation_is_per_piece(piece_corpus: Path, place: Path, bnce: Command) -> None:
    options = ["--corpus", piece_corpus, "--model", "relu-lstm", "--loss", "softmax", "--out", place / "run"]
    outcome = bnce("train", "wiki", *options, "--device", "cpu", *settings())
    assert outcome.status == 0
    assert " per piece, " in outcome.stderr
    assert "pieces/s" in outcome.stderr
    assert "pieces in " in outcome.stdout


def test_a_stopped_run_goes_on(piece_corpus: Path, place: Path, bnce: Command) -> None:
    options = ["--corpus", piece_corpus, "--model", "relu-lstm", "--loss", "bnce", "--device", "cpu", *settings()]
    whole = bnce("train", "wiki", *options, "--set", "training.epochs=2", "--out", place / "whole", "--json").json
    bnce("train", "wiki", *options, "--out", place / "parts")
    resumed = bnce("train", "--resume", "--out", place / "parts", "--set", "training.epochs=2", "--json").json
    assert resumed["test"]["num_words"] == whole["test"]["num_words"]
    assert (place / "parts" / "pieces.json").read_bytes() == (piece_corpus / "pieces.json").read_bytes()


@pytest.mark.parametrize("name", ["pieces.json", "known_words.txt"])
def test_a_run_whose_pieces_changed_is_refused(pieced: Path, place: Path, bnce: Command, refused, name: str) -> None:
    copy = place / "run"
    shutil.copytree(pieced, copy)
    assert bnce("doctor", copy).status == 0
    if name == "pieces.json":
        rules = json.loads((copy / name).read_text(encoding="utf-8"))
        rules["model"]["merges"] = rules["model"]["merges"][:-1]
        (copy / name).write_text(json.dumps(rules), encoding="utf-8")
    else:
        (copy / name).write_text((copy / name).read_text(encoding="utf-8") + "more\n", encoding="utf-8")
    assert f"{name} changed after model.safetensors was written" in refused("evaluate", copy)
    outcome = bnce("doctor", copy)
    assert outcome.status != 0
    assert f"{name} changed after" in outcome.stdout
    (copy / name).unlink()
    assert f"{name} changed after model.safetensors was written" in refused("evaluate", copy)


def test_a_corpus_of_words_is_refused(pieced: Path, corpus: Path, refused) -> None:
    told = refused("evaluate", pieced, "--corpus", corpus)
    assert f"({VOCAB_SIZE} words)" in told
    assert f"--pieces {pieced / 'pieces.json'}" in told
