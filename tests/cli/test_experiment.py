"""`bnce experiment`: from a corpus to the table and the page, in one command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from .conftest import Command, settings

Refused = Callable[..., str]


def test_rows_table_and_report(bnce: Command, corpus: Path, place: Path) -> None:
    options = ["--corpus", corpus, "--models", "rnn", "--losses", "softmax,bnce", "--out", place / "grid", *settings()]
    outcome = bnce("experiment", "ltcb", *options, "--json")
    assert outcome.status == 0
    labels = [row["label"] for row in json.loads(outcome.stdout)["rows"]]
    assert labels == ["RNN (softmax)", "RNN (B-NCE)"]
    report = place / "grid" / "report"
    assert {"table.md", "table.tex", "table.csv", "table.json", "report.html"} <= {
        path.name for path in report.iterdir()
    }
    again = bnce("experiment", "ltcb", *options)
    assert again.status == 0
    assert "RNN (B-NCE)" in again.stdout


def test_refusals(refused: Refused, corpus: Path, place: Path) -> None:
    options = ["--corpus", corpus, "--out", place / "grid"]
    assert "Unknown table 'ltbc'" in refused("experiment", "ltbc", *options)
    assert "Did you mean 'bnce'" in refused("experiment", "ltcb", *options, "--losses", "bcne")
    assert "no row with models ffnn" in refused(
        "experiment", "ltcb", *options, "--models", "ffnn", "--losses", "chunk-bnce"
    )
    assert list(place.iterdir()) == []
