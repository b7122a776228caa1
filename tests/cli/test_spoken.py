"""A model of spoken text, from the text of books to lists: every command reads what it is given in the model's form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Command, Refused, run_command, settings

import bnce as library

BOOK = [
    'Mr. Smith paid $5 in 1848. "Did he?" asked Dr. Jones.',
    "It's 3:05 p.m. The end of Chapter IV, by St. Paul's.",
    "Mrs. Smith had 21 cats & 2 dogs--all of them well-fed.",
]
FIRST = "mister smith paid five dollars in eighteen forty eight"


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("book") / "book.txt"
    path.write_text("\n\n".join(BOOK * 60), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def spoken_run(book: Path) -> Path:
    corpus, run = book.parent / "corpus", book.parent / "run"
    run_command("prepare", book, "--tokens", "spoken", "--out", corpus, "--workers", 1)
    run_command("train", "small", "--corpus", corpus, "--model", "lstm", "--loss", "bnce", "--out", run, *settings())
    return run


def test_prepare_stores_the_form(bnce: Command, book: Path, place: Path) -> None:
    found = bnce("prepare", book, "--tokens", "spoken", "--out", place / "corpus", "--workers", 2, "--json").json
    assert json.loads((place / "corpus" / "corpus.json").read_text())["normaliser"]["tokens"] == "spoken"
    assert sum(split["num_sentences"] for split in found["splits"].values()) == 60 * 5
    words = (place / "corpus" / "vocab.txt").read_text(encoding="utf-8").split()
    assert {"mister", "eighteen", "it's", "oh", "saint", "and", "missus"} <= set(words)
    assert not set(words[2:]) & {".", "1848", "mr", "--", "$"}


def test_prepare_refuses_what_does_not_go_with_it(refused: Refused, book: Path, place: Path) -> None:
    for option, sentence in (
        (("--cased",), "use --lowercase, or other --tokens than spoken."),
        (("--numbers", "zero"), "leave it out, or choose other --tokens than spoken."),
        (("--tokens", "spken"), "choose one of words, whitespace, spoken. Did you mean 'spoken'?"),
    ):
        assert sentence in refused("prepare", book, "--tokens", "spoken", *option, "--out", place / "corpus")


def test_score_reads_written_text(bnce: Command, spoken_run: Path, tmp_path: Path) -> None:
    (tmp_path / "written").write_text("Mr. Smith paid $5 in 1848.\nxyzzy\n", encoding="utf-8")
    (tmp_path / "spoken").write_text(f"{FIRST}\nxyzzy\n", encoding="utf-8")
    written = bnce("score", spoken_run, tmp_path / "written", "--json").json
    spoken = bnce("score", spoken_run, tmp_path / "spoken", "--json").json
    assert (written["num_lines"], written["num_lines_changed"], spoken["num_lines_changed"]) == (2, 1, 0)
    assert written["log10_prob"] == spoken["log10_prob"]
    assert (written["num_oov"], written["num_words"]) == (1, 10)
    told = bnce("score", spoken_run, tmp_path / "written").stderr
    assert "1 of 2 lines were brought into the form of the training text; 1 of 10 words (10.00%) are unknown" in told
    assert "brought into" not in bnce("score", spoken_run, tmp_path / "spoken").stderr
    assert library.load(spoken_run).words("Mr. Smith paid $5 in 1848.") == FIRST.split()


def test_rescore_counts_what_changed(bnce: Command, spoken_run: Path, tmp_path: Path) -> None:
    hypotheses = [{"text": "Mr. Smith paid $5", "score": -1}, {"text": "mister smith xyzzy", "score": -2}]
    (tmp_path / "dev.jsonl").write_text(json.dumps({"id": "x", "hyps": hypotheses}) + "\n", encoding="utf-8")
    outcome = bnce("rescore", spoken_run, tmp_path / "dev.jsonl", "--weight", "lm=0")
    assert outcome.stdout == "x Mr. Smith paid $5\n"
    assert (
        "1 of 2 hypotheses were brought into the form of the training text, such as 'Mr. Smith paid $5' to 'mister "
        "smith paid five dollars'; 1 of 8 words (12.50%) are unknown to the model."
    ) in outcome.stderr
    assert bnce("rescore", spoken_run, tmp_path / "dev.jsonl", "--json").json["form"] == {
        "num_changed": 1,
        "num_hypotheses": 2,
        "num_words": 8,
        "num_oov": 1,
        "example": ["Mr. Smith paid $5", "mister smith paid five dollars"],
    }


def test_long_changes_are_cut_and_hypotheses_as_they_should_be_told(
    bnce: Command, spoken_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "nbest").write_text(f"x-1 It's 5{' and 5' * 40}\n", encoding="utf-8")
    before, after = bnce("rescore", spoken_run, tmp_path / "nbest", "--json").json["form"]["example"]
    assert (len(before), len(after)) == (60, 60)
    assert before.startswith("It's 5 and 5")
    assert before.endswith("…")
    (tmp_path / "nbest").write_text("x-1 mister smith\n", encoding="utf-8")
    told = bnce("rescore", spoken_run, tmp_path / "nbest").stderr
    assert "All hypotheses are in the form of the training text; 0 of 2 words (0.00%) are unknown to the model." in told


def test_surprisal_of_written_words(bnce: Command, spoken_run: Path, tmp_path: Path) -> None:
    (tmp_path / "words.csv").write_text("word\nMr.\nSmith\npaid\n$5\n", encoding="utf-8")
    options = ("--mode", "normalised", "--out", tmp_path / "out.csv")
    assert bnce("surprisal", spoken_run, tmp_path / "words.csv", *options).status == 0
    surprisals = [line.split(",")[1] for line in (tmp_path / "out.csv").read_text().splitlines()[1:]]
    scored = library.load(spoken_run).score(["mister smith paid five dollars"], mode="normalised")[0]
    bits = [-value / 0.693147 for value in scored.log_probs]
    assert [float(value) for value in surprisals] == pytest.approx([*bits[:3], bits[3] + bits[4]], rel=1e-3)


def test_an_n_gram_model_of_spoken_text(bnce: Command, book: Path, spoken_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("kenlm")
    arpa = tmp_path / "model.arpa"
    assert bnce("ngram", book, "--vocab", spoken_run, "--out", arpa, "--order", 2).status == 0
    assert library.load(arpa).words("Mr. Smith paid $5 in 1848.") == FIRST.split()
    assert library.load(arpa).normaliser == library.load(spoken_run).normaliser
