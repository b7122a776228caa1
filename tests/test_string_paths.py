"""Every public function that takes a path takes it as a string, and as a `Path`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import bnce

SIZES = {"model.embedding_size": 6, "model.hidden_size": 8, "model.bottleneck_size": 7}
SHORT = {"training.batch_size": 8, "training.num_steps": 5, "training.epochs": 1, "training.max_train_tokens": 400}


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_a_string_or_a_path(tmp_path: Path, kind: Callable[[Path], str | Path]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"some words {number} ." for number in range(200)), encoding="utf-8")
    made = bnce.prepare([kind(text)], kind(tmp_path / "made"), valid=kind(text), test=kind(text), num_workers=1)
    corpus = bnce.Corpus.open(kind(tmp_path / "made"))
    np.testing.assert_array_equal(corpus.split("test"), made.split("train"))
    run = kind(tmp_path / "run")
    settings = SIZES | SHORT
    summary = bnce.train("wiki", corpus=kind(corpus.directory), out=run, settings=settings, device="cpu")
    assert summary["status"] == "finished"
    adapted = bnce.train("wiki", init=run, out=kind(tmp_path / "more"), settings=SHORT, device="cpu")
    assert adapted["init"]["run"] == os.fspath(run)
    whole = bnce.evaluate(run, corpus=kind(corpus.directory), split="test", device="cpu")
    assert bnce.evaluate(run, text=kind(text), device="cpu").ppl_f == whole.ppl_f
    bnce.calibrate(run, text=[kind(text)], out=kind(tmp_path / "fitted"), device="cpu")
    model = bnce.load(kind(tmp_path / "fitted"))
    assert model.next_words("some", 1)[0].prob > 0
    assert bnce.DocumentScorer(run, device="cpu")(["some words"])["num_words"] == [2]
    assert len(bnce.surprisal(run, ["some", "words"])["num_tokens"]) == 2
    assert bnce.kenlm.Model(run).score("some words") < 0
