"""A run that is killed again and again, in the middle of shards: the same command ends with the outputs of one run."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bnce.filtering import engine
from bnce.filtering import shards as reading
from bnce.filtering.choice import Choice
from bnce.filtering.engine import Scoring
from bnce.filtering.filter import Job, run
from bnce.filtering.shard_work import REPORTS, Plan
from bnce.filtering.writing import Form, Output
from kill_itself import killed_in

from bnce import files

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


def make_job(model: Path, shards: Path, out: Path, choice: Choice | None = None) -> Job:
    plan = Plan(out, Form(), choice or Choice())
    return Job([str(shards)], Scoring(str(model), device="cpu"), plan, num_workers=1, num_sampled=50)


def outputs(out: Path) -> dict[str, bytes]:
    found = (path for path in out.rglob("*") if path.is_file() and ".bnce" not in path.parts)
    return {str(path.relative_to(out)): path.read_bytes() for path in found}


def killed_at(job: Job, owner: object, name: str, call: int) -> bool:
    """Run a job in a process that kills itself in a call of a function."""
    calls = itertools.count(1)
    return killed_in(lambda: run(job), owner, name, lambda *_: next(calls) == call)


def test_kills_leave_no_trace(trained: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Blocks of a few documents, so that a kill finds a shard half written.
    monkeypatch.setattr("bnce.filtering.shards.BLOCK_BYTES", 2000)
    monkeypatch.setattr("bnce.text.unpack.CHUNK_BYTES", 1000)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    thirds = Choice.of(None, None, "30,60")
    run(make_job(trained, shards, whole, thirds))
    job = make_job(trained, shards, broken, thirds)
    first, report = broken / "head" / "0.jsonl", broken / REPORTS / "0.jsonl.json"
    assert killed_at(job, Output, "write", 4)
    assert list(broken.rglob("*.partial")), "in the middle of the first shard"
    assert killed_at(job, files, "write_text", 1)
    assert (first.exists(), report.exists()) == (True, False), "before its report"
    for call in (20, 9):
        assert killed_at(job, Output, "write", call)
        assert report.exists()
        assert list(broken.rglob("*.partial")), "in the middle of the second shard"
    summary = run(job).to_dict()
    assert summary["num_documents"] == NUM_DOCUMENTS * NUM_SHARDS
    assert outputs(broken) == outputs(whole)
    names = [
        json.loads(line)["id"]
        for part in ("head", "middle", "tail")
        for path in (broken / part).iterdir()
        for line in path.read_text().splitlines()
    ]
    assert sorted(names) == sorted(f"{shard}-{n}" for shard in range(NUM_SHARDS) for n in range(NUM_DOCUMENTS))
    assert not list(broken.rglob("*.partial"))


def test_a_long_document_holds_up_no_memory(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a long document only so many blocks wait; all of them come out in order."""
    monkeypatch.setattr("bnce.filtering.shards.BLOCK_BYTES", 300)
    monkeypatch.setattr("bnce.text.unpack.CHUNK_BYTES", 300)
    monkeypatch.setattr(engine, "MAX_WAITING", 3)
    most = 0
    waiting = engine._Waiting

    class Watched(waiting):  # type: ignore[misc, valid-type]
        alive = 0

        def __init__(self, *given: object) -> None:
            nonlocal most
            super().__init__(*given)
            Watched.alive += 1
            most = max(most, Watched.alive)

        def __del__(self) -> None:
            Watched.alive -= 1

    monkeypatch.setattr(engine, "_Waiting", Watched)
    lengths = [5, 20_000, *[7] * 300, 9000, *[3] * 50]
    lines = [json.dumps({"text": " ".join(["ba"] * length)}) for length in lengths]
    (tmp_path / "one.jsonl").write_text("\n".join(lines), encoding="utf-8")
    run(make_job(trained, tmp_path / "one.jsonl", tmp_path / "out"))
    found = [json.loads(line) for line in (tmp_path / "out" / "one.jsonl").read_text().splitlines()]
    assert [one["num_words"] for one in found] == lengths
    assert np.isfinite([one["perplexity"] for one in found]).all()
    assert 1 < most <= 5


def test_the_next_shard_is_read_while_one_is_scored(
    trained: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that waited for every shard to be opened, or to be written, would stand still between them."""
    begun = threading.Event()
    read_blocks, score_blocks, flush = reading.read_blocks, engine.Engine.score_blocks, Output.__exit__
    scored = []

    def read(shard: reading.Shard, *given: Any) -> Any:
        if shard.name == "1.jsonl":
            begun.set()
        return read_blocks(shard, *given)

    def score(self: Any, *given: Any) -> None:
        assert begun.wait(30), "the second shard is not read before the first is scored"
        score_blocks(self, *given)
        scored.append(threading.get_ident())
        if len(scored) == 2:
            second.set()

    def close(self: Any, *error: Any) -> Any:
        assert second.wait(30), "the first shard is not written while the second is scored"
        assert threading.get_ident() not in scored
        return flush(self, *error)

    second = threading.Event()
    monkeypatch.setattr(reading, "read_blocks", read)
    monkeypatch.setattr(engine.Engine, "score_blocks", score)
    monkeypatch.setattr(Output, "__exit__", close)
    assert run(make_job(trained, shards, tmp_path / "out")).to_dict()["num_shards"] == 3


@pytest.mark.parametrize("at_end", [False, True])  # by then the next shard is scored
def test_a_shard_that_cannot_be_written_ends_the_command(
    trained: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_end: bool
) -> None:
    """The thread that writes says so, however far the others are, and no later shard is written."""
    monkeypatch.setattr("bnce.filtering.shards.BLOCK_BYTES", 1500)  # about 20 blocks per shard
    monkeypatch.setattr("bnce.text.unpack.CHUNK_BYTES", 1500)
    write = Output.write

    def fail(self: Any, block: reading.Block, *given: Any) -> None:
        if self._shard.name == "1.jsonl" and (block.end is not None if at_end else block.texts.first > 50):
            raise OSError("no space is left")
        write(self, block, *given)

    monkeypatch.setattr(Output, "write", fail)
    out = tmp_path / "out"
    job = make_job(trained, shards, out)
    with pytest.raises(OSError, match="no space is left"):
        run(job)
    written = [str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()]
    assert sorted(written) == [".bnce/0.jsonl.json", ".bnce/settings.json", "0.jsonl"]
    monkeypatch.undo()
    assert run(job).to_dict()["num_documents"] == NUM_DOCUMENTS * NUM_SHARDS


def test_whoever_stops_the_command_does_not_wait_for_writing(
    trained: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of two shards may wait for a disk, or for a slow compression."""
    monkeypatch.setattr("bnce.filtering.shards.BLOCK_BYTES", 2000)
    monkeypatch.setattr("bnce.text.unpack.CHUNK_BYTES", 1000)
    is_stopped, num_written, num_scored = threading.Event(), itertools.count(), itertools.count()
    score_blocks = engine.Engine.score_blocks

    def write(*given: Any) -> None:
        assert is_stopped.wait(30)
        time.sleep(0.3)  # the writer goes on while others see that it is over
        next(num_written)

    def score(self: Any, *given: Any) -> None:
        if next(num_scored):
            is_stopped.set()
            raise KeyboardInterrupt
        score_blocks(self, *given)

    monkeypatch.setattr(Output, "write", write)
    monkeypatch.setattr(engine.Engine, "score_blocks", score)
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(make_job(trained, shards, out))
    assert next(num_written) <= 2
    assert not [path for path in out.rglob("*") if path.is_file()]
