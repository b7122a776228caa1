"""`bnce experiment --processes N`: several rows at once from one command, with the same report as one after another."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Command, settings
from run_files import states_of, status_of, summary_of

from bnce.machine.copies import Ended

LONG = ("training.epochs=2000", "training.checkpoint_seconds=0.1", "training.evaluations_per_epoch=1")


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # which two processes divide
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def options(corpus: Path, out: Path, *changes: str, losses: str = "softmax,bnce") -> list[str]:
    """Write what somebody types for rows of one model, which has no bottleneck."""
    rows = ["--models", "rnn", "--losses", losses, "--device", "cpu"]
    sizes = settings(*changes)
    place = sizes.index("model.bottleneck_size=7")
    del sizes[place - 1 : place + 1]
    return ["experiment", "ltcb", "--corpus", str(corpus), "--out", str(out), *rows, *sizes]


def wait_until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """List the processes that the first thread of a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def holds(pid: int, row: Path) -> bool:
    """Say whether a process trains a row: then it has the directory open."""
    with contextlib.suppress(OSError):
        return any(os.readlink(opened) == str(row) for opened in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_two_rows_at_once_are_as_two_one_after_the_other(
    bnce: Command, corpus: Path, place: Path, copies_started: list[int]
) -> None:
    """The same figures, bit for bit, the same report, and a record of the command that somebody typed."""
    one = bnce(*options(corpus, place / "one"), "--json")
    two = bnce(*options(corpus, place / "two"), "--processes", "5", "--json")
    assert (one.status, two.status) == (0, 0), two.stderr
    for row in ("rnn-softmax", "rnn-bnce"):
        found, expected = ((place / name / row / "evaluation.json").read_text() for name in ("two", "one"))
        assert found == expected
        assert (place / "two" / row / "model.safetensors").exists()
        assert not states_of(place / "two" / row)
        typed = ["bnce", *options(corpus, place / "two"), "--processes", "5", "--json"]
        assert summary_of(place / "two" / row)["threads"] == 1
        assert shlex.split(summary_of(place / "two" / row)["command"]) == typed
    expected_record = one.json
    assert {name: two.json[name] for name in ("finished", "waiting", "failed")} == {
        name: expected_record[name] for name in ("finished", "waiting", "failed")
    }
    assert [row["run"] for row in two.json["rows"]] == [row["run"] for row in expected_record["rows"]]
    written = {path.name for path in (place / "one" / "report").iterdir()}
    assert {path.name for path in (place / "two" / "report").iterdir()} == written
    *progress, last = two.stderr.splitlines()
    assert last.startswith("Wrote ")
    assert copies_started == [2], "no more processes than rows"
    assert {line[:4] for line in progress} <= {"[1] ", "[2] "}, "one that starts late may find no row left"


def test_one_row_diverges_and_the_process_of_another_is_killed(bnce: Command, corpus: Path, place: Path) -> None:
    """Both are named, one with its reason and the other to be continued; the third row is in the report."""
    recipe = place / "wild.toml"
    recipe.write_text('base = "wiki"\n[losses.softmax.optimiser]\nlearning_rate = 1e38\n', encoding="utf-8")
    grid = place.resolve() / "grid"

    def kill() -> None:
        found: list[int] = []
        wait_until(lambda: found.extend(pid for pid in children(os.getpid()) if holds(pid, grid / "rnn-bnce")) or found)
        os.kill(found[0], signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    given = options(corpus, grid, "training.epochs=3", losses="softmax,bnce,chunk-bnce")
    outcome = bnce(*given, "--recipe", recipe, "--processes", "2", "--json")
    killer.join()
    assert outcome.status == 1
    record = json.loads(outcome.stdout)
    assert [row["run"] for row in record["rows"] if row["status"] == "finished"] == ["rnn-chunk-bnce"]
    assert (record["finished"], record["waiting"], list(record["failed"])) == (False, ["rnn-bnce"], ["rnn-softmax"])
    assert "no longer finite" in record["failed"]["rnn-softmax"]
    assert outcome.stderr.count("rnn-softmax failed: ") == 1
    assert "was ended by SIGKILL, perhaps because memory ran out." in outcome.stderr
    last = "Some rows are not finished; the same command continues them (rnn-bnce)."
    assert outcome.stderr.splitlines()[-1] == last
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_saves_all_rows_and_leaves_nobody_behind(corpus: Path, place: Path, number: signal.Signals) -> None:
    """To the whole group, as a terminal does; also where the command that started the others cannot say a word."""
    rows = [place.resolve() / "grid" / name for name in ("rnn-softmax", "rnn-bnce")]
    process = subprocess.Popen(
        [sys.executable, "-m", "bnce", *options(corpus, place / "grid", *LONG), "--processes", "2", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    wait_until(lambda: all(map(states_of, rows)) or process.poll() is not None)
    workers = children(process.pid)
    assert len(workers) == 2
    os.killpg(process.pid, number)
    stdout, stderr = process.communicate(timeout=60)
    wait_until(lambda: not any(holds(pid, row) for pid in workers for row in rows))
    assert [status_of(row) for row in rows] == ["stopped", "stopped"], stderr
    if number == signal.SIGKILL:
        return
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert process.returncode == 130
    assert json.loads(stdout) == {"rows": [], "finished": False, "waiting": [row.name for row in rows], "failed": {}}
    last = "Some rows are not finished; the same command continues them (rnn-softmax, rnn-bnce)."
    assert stderr.splitlines()[-1] == last
    assert "Traceback" not in stderr
    assert not (place / "grid" / "report").exists()


def test_what_is_wrong_is_told_once_and_nobody_is_started(
    refused: Callable[..., str], corpus: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = options(corpus, place / "grid")
    assert "--processes received '0'" in refused(*given, "--processes", "0")
    with monkeypatch.context() as patched:
        patched.setattr("bnce.cli.copies.run_copies", None)
        assert "training.batch_size" in refused(*given, "--set", "training.batch_size=100000", "--processes", "2")
        assert "Unknown device" in refused(*given, "--device", "gpu", "--processes", "2")
    copies = [Ended(number, 2, "", "The disk is full; free some space, then go on.") for number in (1, 2)]
    monkeypatch.setattr("bnce.cli.copies.run_copies", lambda *_: copies)
    assert refused(*given, "--processes", "2") == "bnce: The disk is full; free some space, then go on."
    assert list(place.iterdir()) == []


def test_a_process_that_failed_or_was_stopped_is_named(
    bnce: Command, corpus: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = 'noise of a package\n3\n{"row": "rnn-bnce", "failed": "The GPU\'s memory is full."}\n{"row": "cut'
    copies = [Ended(1, 1, "", "Unexpected error, KeyError: report it."), Ended(2, 143, told, "")]
    monkeypatch.setattr("bnce.cli.copies.run_copies", lambda *_: copies)
    outcome = bnce(*options(corpus, place / "grid"), "--processes", "2")
    assert outcome.status == 1
    assert outcome.stderr.splitlines() == [
        "Process 1 failed: Unexpected error, KeyError: report it.",
        "Process 2 was ended by SIGTERM.",
        "rnn-bnce failed: The GPU's memory is full.",
        "Some rows are not finished; the same command continues them (rnn-softmax).",
    ]
