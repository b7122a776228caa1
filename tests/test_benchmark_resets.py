"""The measurement of resets: what it trains once, and what its table shows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from small_corpus import small_corpus

from benchmarks import resets

SMALL = ["model.embedding_size=6", "model.hidden_size=8", "training.batch_size=8", "training.epochs=1"]


def test_every_run_is_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, out = small_corpus(tmp_path / "corpus").directory, tmp_path / "resets.jsonl"
    settings = [word for setting in SMALL for word in ("--set", setting)]
    command = ["resets.py", "--corpus", str(corpus), "--out", str(out), "--device", "cpu", *settings]

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", [*command, *words])
        resets.main()
        return capsys.readouterr().out

    first = run("--losses", "bnce,softmax", "--rates", "0,0.5", "--seeds", "1")
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [(line["loss"], line["reset_rate"]) for line in lines] == [
        ("bnce", 0.0), ("bnce", 0.5), ("softmax", 0.0), ("softmax", 0.5),
    ]  # fmt: skip
    assert lines[0]["in_context"]["ppl_f"] != lines[1]["in_context"]["ppl_f"]
    assert lines[0]["by_sentence"]["ppl_f"] != lines[0]["in_context"]["ppl_f"]
    both = lines[0]["in_context"]["ppl_f"], lines[0]["by_sentence"]["ppl_f"]
    assert f"| lstm | bnce | 0 | 1 | {both[0]:.1f} | {both[1]:.1f} |" in first
    assert "| – | – |" in first.splitlines()[-1], "a softmax has no PPLn"
    run("--losses", "bnce", "--rates", "0.5", "--seeds", "1,2")
    assert len(out.read_text(encoding="utf-8").splitlines()) == 5
    assert "| lstm | bnce | 0.5 | 2 |" in run("--table")
