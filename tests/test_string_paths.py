"""Every function of the library that takes a path takes it as a string, too, and text files as a `Path`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_corpus import small_config, small_corpus, small_model

import bnce
from bnce import Corpus, prepare
from bnce.config import read_config
from bnce.corpus.prepare import encode_text
from bnce.corpus.vocabulary import Vocabulary
from bnce.export.to_safetensors import export_rows
from bnce.lexicon.add_words import add_words
from bnce.report.comparison import compare_runs
from bnce.report.page import write_report
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import save_weights
from bnce.text.sources import read_lines
from bnce.training.plan import create_run


@pytest.fixture
def run(tmp_path: Path) -> str:
    corpus = small_corpus(tmp_path / "corpus")
    made = RunDirectory.create(str(tmp_path / "run"), small_config(corpus), corpus)
    save_weights(made, small_model("relu-lstm").state_dict(), 1)
    return str(made.path)


def test_runs(run: str, tmp_path: Path) -> None:
    assert bnce.load(run).vocabulary == Vocabulary.read(f"{run}/vocab.txt")
    opened = RunDirectory.open(run)
    assert read_config(f"{run}/config.toml") == opened.config
    export_rows(opened, str(tmp_path / "exported"))
    add_words(opened, str(tmp_path / "more"), {"yak": 2})
    assert bnce.load(str(tmp_path / "more")).next_words("w3", 1)
    corpus = Corpus.open(str(tmp_path / "corpus"))
    assert create_run(str(tmp_path / "another"), opened.config, corpus).path == tmp_path / "another"
    opened.write_json("summary.json", {"status": "finished"})
    opened.write_json("evaluation.json", {"ppl_f": 3.0, "split": "test"})
    write_report(compare_runs([run]), str(tmp_path / "report"))
    assert (tmp_path / "report" / "report.html").is_file()


def test_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"some words {number} ." for number in range(40)), encoding="utf-8")
    corpus = prepare([text], str(tmp_path / "made"), valid=text, test=text)
    assert list(read_lines(text)) == list(read_lines(str(text)))
    ids, _ = encode_text(text, corpus.vocabulary, corpus.normaliser)
    np.testing.assert_array_equal(ids, corpus.split("test"))
