"""A run that is killed again and again, in the middle of shards: the same command ends with the outputs of one run."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from kill_itself import killed_in

from bnce import DocumentScorer
from bnce.data import filter
from bnce.data.filter import Job, run

NUM_SHARDS, NUM_DOCUMENTS = 3, 200


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    draw = random.Random(1)
    words = [first + second for first in "bdfgk" for second in "aeiou"]
    directory = tmp_path / "shards"
    directory.mkdir()
    for shard in range(NUM_SHARDS):
        texts = (" ".join(draw.choices(words, k=draw.randint(1, 90))) for _ in range(NUM_DOCUMENTS))
        lines = (json.dumps({"id": f"{shard}-{n}", "text": text}) + "\n" for n, text in enumerate(texts))
        (directory / f"{shard}.jsonl").write_text("".join(lines), encoding="utf-8")
    return directory


def make_job(model: Path, shards: Path, out: Path, limits: tuple[float, ...]) -> Job:
    return Job([str(shards)], out, DocumentScorer(model, device="cpu"), limits=limits)


def outputs(out: Path) -> dict[str, bytes]:
    found = (path for path in out.rglob("*") if path.is_file() and ".bnce" not in path.parts)
    return {str(path.relative_to(out)): path.read_bytes() for path in found}


def killed_at(job: Job, owner: object, name: str, call: int) -> bool:
    """Run a job in a process that kills itself in a call of a function."""
    calls = itertools.count(1)
    return killed_in(lambda: run(job), owner, name, lambda *_: next(calls) == call)


def test_kills_leave_no_trace(trained: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Blocks of a few documents, so that a kill finds a shard half written.
    monkeypatch.setattr("bnce.data.shards.BLOCK_DOCUMENTS", 10)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    thirds = (20.0, 30.0)
    run(make_job(trained, shards, whole, thirds))
    job = make_job(trained, shards, broken, thirds)
    head, tail = broken / "head", broken / "tail"
    assert killed_at(job, filter, "with_scores", 4)
    assert list(broken.rglob("*.partial")), "in the middle of the first shard"
    assert killed_at(job, os, "replace", 3)
    assert (head / "0.jsonl").exists() != (tail / "0.jsonl").exists(), "between its parts"
    for call in (25, 5):
        assert killed_at(job, filter, "with_scores", call)
        assert all((place / "0.jsonl").exists() for place in (head, tail))
        assert list(broken.rglob("*.partial")), "in the middle of the second shard"
    summary = run(job)
    assert summary["num_shards_before"] == 1
    assert outputs(broken) == outputs(whole)
    names = [
        json.loads(line)["id"]
        for part in ("head", "middle", "tail")
        for path in (broken / part).iterdir()
        for line in path.read_text().splitlines()
    ]
    assert sorted(names) == sorted(f"{shard}-{n}" for shard in range(NUM_SHARDS) for n in range(NUM_DOCUMENTS))
    assert not list(broken.rglob("*.partial"))


def test_random_kills_leave_no_trace(trained: Path, shards: Path, tmp_path: Path) -> None:
    """Killed twenty times anywhere, from opening the model to renaming the last file."""
    whole, broken, draw = tmp_path / "whole", tmp_path / "broken", random.Random(1)
    limits = (20.0, 30.0)
    begin = time.monotonic()
    run(make_job(trained, shards, whole, limits))
    seconds, num_killed = time.monotonic() - begin, 0
    while num_killed < 20:
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                run(make_job(trained, shards, broken, limits))
            os._exit(0)
        time.sleep(draw.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        if os.WIFSIGNALED(os.waitpid(child, 0)[1]):
            num_killed += 1
        else:  # it had come to its end: from the start
            shutil.rmtree(broken)
    run(make_job(trained, shards, broken, limits))
    assert outputs(broken) == outputs(whole)
