"""Corpora and runs of pieces of words, and a count of the copies that commands start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from command import settings

from bnce.cli import app
from bnce.machine.copies import share_machine

NUM_PIECES = 280


@pytest.fixture
def copies_started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the numbers of copies that commands start; how many of them are in time to find work is chance."""
    started: list[int] = []

    def share_and_count(gpus: Sequence[str], num_copies: int) -> list[dict[str, str]]:
        started.append(num_copies)
        return share_machine(gpus, num_copies)

    monkeypatch.setattr("bnce.cli.copies.share_machine", share_and_count)
    return started


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
