"""A corpus of pieces from the text to the last command that uses its run."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import Command, settings
from small_corpus import END, VOCAB_SIZE
from starlette.testclient import TestClient

from bnce import Corpus, load
from bnce.runs.checkpoint import MODEL_FILE, read_model
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import load_model, save_weights
from bnce.scoring.loading import write_mixture
from bnce.scoring.run_model import load_run
from bnce.serve.app import make_app

from .conftest import NUM_PIECES


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
    assert "without the cost of spelling <unk>" in printed


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
    assert "pieces in " in outcome.stdout
    statistics = Corpus.open(piece_corpus).statistics["train"]
    summary = json.loads((place / "run" / "summary.json").read_text())
    assert summary["tokens_per_word"] == pytest.approx(statistics.num_tokens / statistics.num_words)
    assert summary["tokens_per_word"] > 1
    in_words = summary["tokens"] / summary["tokens_per_word"] / summary["train_seconds"]
    assert summary["words_per_second"] == pytest.approx(in_words, rel=0.01)


def test_a_text_whose_words_are_single_pieces_is_still_of_pieces(pieced: Path, bnce: Command) -> None:
    outcome = bnce("evaluate", pieced, "--max-words", "1", "--device", "cpu")
    assert "test: 1 word in 1 piece, " in outcome.stdout
    assert "per word or piece" in outcome.stdout


def test_a_stopped_run_goes_on(piece_corpus: Path, place: Path, bnce: Command) -> None:
    options = ["--corpus", piece_corpus, "--model", "relu-lstm", "--loss", "bnce", "--device", "cpu", *settings()]
    whole = bnce("train", "wiki", *options, "--set", "training.epochs=2", "--out", place / "whole", "--json").json
    bnce("train", "wiki", *options, "--out", place / "parts")
    resumed = bnce("train", "--resume", "--out", place / "parts", "--set", "training.epochs=2", "--json").json
    assert (resumed["status"], resumed["step"]) == (whole["status"], whole["step"]) == ("finished", whole["step"])
    assert resumed["unit"] == "piece"
    assert resumed["test"]["num_words"] == whole["test"]["num_words"]
    assert (place / "parts" / "pieces.json").read_bytes() == (piece_corpus / "pieces.json").read_bytes()


@pytest.mark.parametrize("name", ["pieces.json", "known_words.txt"])
def test_a_run_whose_pieces_changed_is_refused(pieced: Path, place: Path, bnce: Command, refused, name: str) -> None:
    copy = place / "run"
    shutil.copytree(pieced, copy)
    assert bnce("info", copy, "--check").status == 0
    if name == "pieces.json":
        rules = json.loads((copy / name).read_text(encoding="utf-8"))
        rules["model"]["merges"] = rules["model"]["merges"][:-1]
        (copy / name).write_text(json.dumps(rules), encoding="utf-8")
    else:
        (copy / name).write_text((copy / name).read_text(encoding="utf-8") + "more\n", encoding="utf-8")
    assert f"{name} changed after model.safetensors was written" in refused("evaluate", copy)
    outcome = bnce("info", copy, "--check")
    assert outcome.status != 0
    assert f"{name} changed after" in outcome.stdout
    (copy / name).unlink()
    assert f"{name} is missing: restore the file with which model" in refused("evaluate", copy)
    assert f"{name} is missing" in bnce("info", copy, "--check").stdout


def test_known_words_that_came_later_are_refused(
    pieced: Path, trained: Path, place: Path, texts: Path, bnce: Command, refused
) -> None:
    run = shutil.copytree(pieced, place / "run")
    for name in ("known_words.txt", "spelling.safetensors"):
        (run / name).unlink()
    save_weights(RunDirectory.open(run), read_model(run / MODEL_FILE)[0], 1)
    assert bnce("info", run, "--check").status == 0
    shutil.copyfile(trained / "vocab.txt", run / "known_words.txt")
    shutil.copyfile(trained / "spelling.safetensors", run / "spelling.safetensors")
    outcome = bnce("info", run, "--check")
    assert outcome.status != 0
    for name in ("known_words.txt", "spelling.safetensors"):
        told = f"{name} was not there when model.safetensors was written: remove it"
        assert told in outcome.stdout
        assert told in refused("score", run, texts / "test.txt")
        (run / name).unlink()
    assert bnce("info", run, "--check").status == 0


@pytest.mark.parametrize("name", ["pieces.json", "known_words.txt"])
def test_a_corpus_whose_pieces_changed_is_refused(
    piece_corpus: Path, place: Path, bnce: Command, refused, name: str
) -> None:
    copy = place / "corpus"
    shutil.copytree(piece_corpus, copy)
    assert bnce("info", copy, "--check").status == 0
    with open(copy / name, "a", encoding="utf-8") as file:
        file.write("\n")
    outcome = bnce("info", copy, "--check")
    assert outcome.status != 0
    assert f"{name} has changed since it was written" in outcome.stdout
    assert f"{name} has changed since it was written" in refused(
        "train", "wiki", "--corpus", copy, "--out", place / "r"
    )


def test_a_corpus_of_words_is_refused(pieced: Path, corpus: Path, refused) -> None:
    told = refused("evaluate", pieced, "--corpus", corpus)
    assert f"({VOCAB_SIZE} words)" in told
    assert f"--pieces {pieced / 'pieces.json'}" in told


def test_a_corpus_of_other_known_words_is_refused(
    pieced: Path, texts: Path, place: Path, bnce: Command, refused
) -> None:
    splits = ["--valid", texts / "valid.txt", "--test", texts / "test.txt", "--workers", 1]
    rules, known = pieced / "pieces.json", pieced / "known_words.txt"

    def prepare(name: str, *options: object) -> Path:
        bnce("prepare", texts / "train.txt", "--out", place / name, "--pieces", rules, *splits, *options)
        return place / name

    other, same = prepare("other"), prepare("same", "--known-words", known)
    record = bnce("evaluate", pieced, "--corpus", same, "--json").json
    assert record["ppl_f"] == bnce("evaluate", pieced, "--json").json["ppl_f"]
    moved = shutil.copytree(pieced, place / "run")
    config = (moved / "config.toml").read_text(encoding="utf-8")
    corpus = RunDirectory.open(moved).config.corpus
    assert corpus in config
    (moved / "config.toml").write_text(config.replace(corpus, str(other)), encoding="utf-8")
    for run, command in (
        (pieced, ["evaluate", pieced, "--corpus", other]),
        (pieced, ["train", "--init", pieced, "--corpus", other, "--out", place / "new"]),
        (moved, ["train", "--resume", "--out", moved, "--set", "training.epochs=2"]),
    ):
        told = refused(*command)
        assert f"has other known words (all words) than the run '{run}' ({VOCAB_SIZE} words)" in told
        assert f"--pieces {run / 'pieces.json'} and --known-words {run / 'known_words.txt'}" in told
    assert not (place / "new").exists()


def test_a_run_that_knows_every_word_wants_such_a_corpus(
    pieced: Path, piece_corpus: Path, place: Path, refused
) -> None:
    run = shutil.copytree(pieced, place / "run")
    (run / "known_words.txt").unlink()
    save_weights(RunDirectory.open(run), read_model(run / MODEL_FILE)[0], 1)
    told = refused("evaluate", run, "--corpus", piece_corpus)
    assert f"has other known words ({VOCAB_SIZE} words) than the run '{run}' (all words)" in told
    assert f"--pieces {run / 'pieces.json'}, without --known-words" in told


def test_other_rules_for_the_same_pieces_are_refused(pieced: Path, piece_corpus: Path, place: Path, refused) -> None:
    run = shutil.copytree(pieced, place / "run")
    rules = json.loads((run / "pieces.json").read_text(encoding="utf-8"))
    rules["model"]["merges"] = rules["model"]["merges"][::-1]
    (run / "pieces.json").write_text(json.dumps(rules), encoding="utf-8")
    save_weights(RunDirectory.open(run), read_model(run / MODEL_FILE)[0], 1)
    assert "has another pieces.json (the same pieces) than the run" in refused("evaluate", run)


def test_pieces_that_came_to_a_run_over_words_are_refused(
    trained: Path, pieced: Path, place: Path, texts: Path, bnce: Command, refused
) -> None:
    run = shutil.copytree(trained, place / "run")
    shutil.copyfile(pieced / "pieces.json", run / "pieces.json")
    told = "does not fit pieces.json: use the files that were written together. If its lines are whole words, remove"
    assert told in refused("score", run, texts / "test.txt")
    outcome = bnce("info", run, "--check")
    assert outcome.status != 0
    assert told in outcome.stdout


def test_a_file_that_came_later_is_not_resumed_with(trained: Path, place: Path, refused) -> None:
    run = shutil.copytree(trained, place / "run")
    (run / "unknown_words.tsv").write_text("<unk>\t0.0\t1\nzebra\t1.0\n", encoding="utf-8")
    told = refused("train", "--resume", "--out", run, "--set", "training.epochs=2")
    assert "unknown_words.tsv was not there when model.safetensors was written: remove it" in told


def test_every_word_of_a_text_is_scored(pieced: Path, texts: Path, piece_corpus: Path, bnce: Command) -> None:
    (texts / "two.txt").write_text("ba be xyzzy\nbi\n", encoding="utf-8")
    lines = bnce("score", pieced, texts / "two.txt", "--mode", "normalised", "--jsonl").stdout.splitlines()
    first, _ = (json.loads(line) for line in lines)
    assert first["words"] == ["ba", "be", "xyzzy", "</s>"]
    assert first["oov"] == [False, False, True, False]
    vocabulary = Corpus.open(piece_corpus).vocabulary
    expected = log_probs(pieced, vocabulary.encode(["ba", "be", "xyzzy", "</s>"])).sum() / math.log(10)
    assert first["log10_prob"] == pytest.approx(expected, abs=1e-4)
    for layout in ("kenlm", "srilm"):
        printed = bnce("score", pieced, texts / "two.txt", "--layout", layout, "--per-word", "--carry").stdout
        assert "xyzzy" in printed
    assert "pieces, unnormalised - exact" in bnce("score", pieced, texts / "two.txt", "--mode", "checked").stdout
    assert bnce("score", pieced, texts / "two.txt", "--json").json["num_words"] == 4


def test_lists_are_rescored(pieced: Path, place: Path, bnce: Command) -> None:
    (place / "nbest").write_text("x-1 ba be bi\nx-2 ba be\ny-1 fu ba be\ny-2 fu ba\n", encoding="utf-8")
    (place / "refs").write_text("x ba be\ny fu ba\n", encoding="utf-8")
    plain = bnce("rescore", pieced, place / "nbest", "--json", "--refs", place / "refs").json
    assert plain["num_utterances"] == 2
    for options in ([], ["--mode", "normalised"]):
        assert bnce("rescore", pieced, place / "nbest", *options).status == 0


def test_text_is_generated(pieced: Path, bnce: Command) -> None:
    texts = bnce("generate", pieced, "--prompt", "ba be", "-n", 3, "--max-words", 4, "--json").json["texts"]
    assert all(text.startswith("ba be") and "Ġ" not in text for text in texts)
    found = bnce("generate", pieced, "--prompt", "ba be", "--next", 3, "--json").json["next"]
    assert len(found) == 3
    assert all("Ġ" not in one["word"] for one in found)


def test_a_server_answers(pieced: Path) -> None:
    model = load_run(pieced)
    served: Any = make_app(load(pieced), "pieces")
    with TestClient(served, "http://localhost") as client:
        answer = client.post("/score", json={"sentences": ["ba be bi", "xyzzy"], "mode": "normalised"}).json()
        expected = model.score(["ba be bi", "xyzzy"], normalised=True)
        found = [sentence["log10_prob"] for sentence in answer["sentences"]]
        assert found == pytest.approx([one.log10_prob for one in expected], abs=1e-4)
        exact = client.post("/score", json={"sentences": ["ba be bi"], "exact": True}).json()
        assert "log_z" not in exact["sentences"][0]
        assert exact["sentences"][0]["exact_log10_prob"] == pytest.approx(found[0], abs=1e-4)
        assert client.get("/healthz").json()["unit"] == "piece"
        answer = client.post("/next", json={"prompt": "ba be", "k": 3}).json()
        assert [one["word"] for one in answer["next"]] == [one.word for one in model.next_words("ba be", 3)]
        lists = {"utterances": [{"id": "x", "hypotheses": [{"text": "ba be"}, {"text": "ba be bi"}]}]}
        assert len(client.post("/rescore", json=lists).json()["utterances"][0]["hypotheses"]) == 2


def test_words_and_pieces_stand_in_one_mixture(
    pieced: Path, trained: Path, texts: Path, place: Path, bnce: Command
) -> None:
    write_mixture(place / "mix.toml", [pieced, trained], [0.5, 0.5])
    record = bnce("evaluate", place / "mix.toml", "--text", texts / "test.txt", "--json").json
    assert (record["vocabularies_differ"], record["has_pieces"]) == (False, True)
    printed = bnce("evaluate", place / "mix.toml", "--text", texts / "test.txt").stdout
    assert "sum to more than 1" in printed
    assert "all words sum to 1" not in printed
    assert record["ppl_f"] < max(part["ppl_f"] for part in record["components"])
    of_split = bnce("evaluate", place / "mix.toml", "--json").json
    assert of_split["ppl_f"] == pytest.approx(record["ppl_f"], rel=1e-5)
    assert bnce("generate", place / "mix.toml", "--next", 3).status == 0


def test_what_is_for_words_is_refused(pieced: Path, trained: Path, piece_corpus: Path, place: Path, refused) -> None:
    (place / "words").write_text("zebra\n", encoding="utf-8")
    told = refused("vocab", pieced, "--add", place / "words", "--out", place / "more")
    assert "is a run over pieces" in told
    for source in (piece_corpus, pieced):
        options = ["--vocab", source] if source == pieced else []
        told = refused("ngram", piece_corpus, *options, "--out", place / "a.arpa")
        assert "n-gram models here are over words" in told
    told = refused("train", "wiki", "--init", trained, "--corpus", piece_corpus, "--out", place / "run", *settings())
    assert "can only start from one over the same pieces" in told


def test_a_run_starts_from_one_over_the_same_pieces(
    pieced: Path, piece_corpus: Path, place: Path, bnce: Command
) -> None:
    options = ["--init", pieced, "--corpus", piece_corpus, "--out", place / "run", "--device", "cpu", *settings()]
    assert bnce("train", "wiki", *options).status == 0


def test_a_run_is_exported(pieced: Path, place: Path, bnce: Command, refused) -> None:
    assert bnce("export", pieced, "--to", "onnx", "--out", place / "onnx").status == 0
    assert json.loads((place / "onnx" / "model.json").read_text(encoding="utf-8"))["unit"] == "piece"
    assert (place / "onnx" / "pieces.json").read_bytes() == (pieced / "pieces.json").read_bytes()
    assert bnce("export", pieced, "--to", "safetensors", "--out", place / "run").status == 0
    of_copy, of_run = (bnce("evaluate", run, "--json").json for run in (place / "run", pieced))
    assert of_copy["ppl_f_word"] == of_run["ppl_f_word"]
    told = refused("export", pieced, "--to", "transformers", "--out", place / "transformers")
    assert "words outside known_words.txt are <unk>" in told
    assert not (place / "transformers").exists()


def test_word_rules_and_pieces_are_combined(texts: Path, place: Path, bnce: Command) -> None:
    options = ["--tokens", "whitespace", "--bpe", "--vocab-size", NUM_PIECES, "--workers", 1, "--out", place / "c"]
    given = ["--valid", texts / "valid.txt", "--test", texts / "test.txt"]
    outcome = bnce("prepare", texts / "train.txt", *given, *options)
    assert "pieces of words" in outcome.stdout
    corpus = Corpus.open(place / "c")
    assert corpus.normaliser.tokens == "whitespace"
    assert corpus.vocabulary.unit == "piece"
    assert not (place / "c" / "known_words.txt").exists()
    # Nothing is unknown, and nothing is left to spell.
    assert corpus.statistics["test"].num_oov == 0
    assert corpus.manifest.spelling_hash is None
