"""A run of a small corpus, laid out and not trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_corpus import small_config, small_corpus

from bnce import Corpus
from bnce.runs.directory import RunDirectory


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return small_corpus(tmp_path / "corpus")


@pytest.fixture
def run(tmp_path: Path, corpus: Corpus) -> RunDirectory:
    return RunDirectory.create(tmp_path / "runs" / "run", small_config(corpus), corpus)
