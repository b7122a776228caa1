"""Which run goes on: what is kept of one that was begun, and what is cleared away."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_corpus import small_config, small_corpus

from bnce import Corpus, files
from bnce.runs.directory import Run
from bnce.runs.resuming import is_begun, remove_unbegun


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return small_corpus(tmp_path / "corpus", num_train=1003)


def test_only_a_run_without_anything_to_keep_is_removed(place: Path, corpus: Corpus) -> None:
    run = Run.create(place / "run", small_config(corpus), corpus)
    files.write_json(run.path / "summary.json", {"status": "running"})
    assert not is_begun(run.path)
    for name in ("state-000000000001.safetensors", "metrics.jsonl", "model.safetensors", "evaluation.json", "mine.txt"):
        (run.path / name).write_text("kept", encoding="utf-8")
        assert is_begun(run.path)
        remove_unbegun(run.path)
        (run.path / name).unlink()
    remove_unbegun(run.path)
    assert list(place.iterdir()) == []
