"""metrics.jsonl: what is written comes back, and what is no evaluation is left out and counted."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from command import Command, Refused
from small_corpus import Watcher, small_corpus
from small_training import resume_small, train_small

from bnce import Corpus, UserError


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return small_corpus(tmp_path / "corpus", num_train=1003)  # an epoch has 25 steps


@pytest.fixture
def run(tmp_path: Path, corpus: Corpus) -> Path:
    """Train a run that is stopped after its evaluations at steps 9 and 17."""
    train_small(tmp_path / "run", corpus, training={"evaluations_per_epoch": 3}, stop_after=20)
    return tmp_path / "run"


def steps(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_evaluations_after_the_state_are_made_again(run: Path) -> None:
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 25, "ppl_f": 0.25}\n{"step": 34, "pp')
    resume_small(run, stop_after=1)
    assert steps(run) == [9, 17]
    assert resume_small(run)["status"] == "finished"
    assert steps(run) == [9, 17, 25, 34, 42, 50]
    assert 0.25 not in [json.loads(line)["ppl_f"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_full_disk(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, written = Path.write_text, tmp_path / "run" / "metrics.jsonl"

    def full(path: Path, *arguments: Any, **keywords: Any) -> int:
        if path.name == written.name and written.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(path, *arguments, **keywords)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match=r"The disk is full: '.*metrics.jsonl'"):
        train_small(tmp_path / "run", corpus)
    assert steps(tmp_path / "run") == [25]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"step": "20"}', "its step is '20'"),
        ('{"step": 30, "ppl_f": "low"}', "its ppl_f is 'low'"),
        ('{"step": 30}', "it has no ppl_f"),
        ("[]", "it is not a JSON object"),
    ],
)
def test_lines_that_are_no_evaluations_are_told(
    run: Path, bnce: Command, refused: Refused, line: str, why: str
) -> None:
    first, second = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    (run / "metrics.jsonl").write_text("\n".join([first, line, second]) + "\n", encoding="utf-8")
    assert f"Line 2 of '{run / 'metrics.jsonl'}' is damaged ({why})" in refused("compare", run)
    assert bnce("info", run, "--json").json["metrics"][0]["step"] == 17
    watcher = Watcher()
    assert resume_small(run, observer=watcher)["status"] == "finished"
    assert f"Damaged lines in '{run / 'metrics.jsonl'}' were skipped: 1." in watcher.sentences
    assert steps(run) == [9, 17, 25, 34, 42, 50]
