"""`bnce demo`: three runs, the table, the report and some sentences, by one command that can be given again."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Command, settings
from run_files import summary_of

from bnce import Corpus

demo = importlib.import_module("bnce.cli.demo")  # its function has the same name


@pytest.fixture(autouse=True)
def _small_text(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a small corpus for the docstrings, which would be prepared first."""
    monkeypatch.setattr(demo, "open_corpus", lambda name: Corpus.open(corpus))


def test_one_command_makes_the_table_and_the_report(bnce: Command, place: Path) -> None:
    words = ["demo", "--out", place / "demo", *settings(), "--set", "training.max_train_tokens=0"]
    first = bnce(*words)
    assert first.status == 0, first.stderr
    for name in ("ReLu-LSTM (softmax)", "ReLu-LSTM (S-NCE, K=100)", "ReLu-LSTM (B-NCE)"):
        assert name in first.stdout
    made_up = first.stdout.partition("makes up:\n")[2].splitlines()
    assert len(made_up) == demo.NUM_SENTENCES
    assert f"The report with plots: {place / 'demo' / 'report' / 'report.html'}" in first.stderr
    assert (place / "demo" / "report" / "report.html").is_file()
    trained = [summary_of(place / "demo" / loss) for loss in demo.LOSSES]
    again = bnce(*words, "--json")
    assert [row["loss"] for row in json.loads(again.stdout)["rows"]] == list(demo.LOSSES)
    assert [summary_of(place / "demo" / loss) for loss in demo.LOSSES] == trained, "nothing is trained again"
    # Nor is a demo of other settings continued.
    refused = bnce(*words, "--set", "training.epochs=2")
    assert refused.status == 2
    assert "training.epochs" in refused.stderr


def test_an_output_that_is_a_file_is_told_once(refused: Callable[..., str], place: Path) -> None:
    (place / "file").touch()
    told = refused("demo", "--out", place / "file", *settings(), "--set", "training.max_train_tokens=0")
    assert told == f"bnce: Cannot write to the output directory '{place / 'file'}' (Not a directory): give another one."
