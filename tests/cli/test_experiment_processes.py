"""`bnce experiment` started twice at once: each row is trained by one of the two, with the same figures as by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import Command, settings
from run_files import states_of

ROWS = ("rnn-softmax", "rnn-bnce", "rnn-chunk-bnce")


def options(corpus: Path, out: Path) -> list[str]:
    """Write what somebody types for rows of one model."""
    rows = ["--rows", ",".join(ROWS), "--device", "cpu", "--json"]
    return ["experiment", "ltcb", "--corpus", str(corpus), "--out", str(out), *rows, *settings()]


def test_started_twice_it_trains_each_row_once(
    bnce: Command, corpus: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    command = [sys.executable, "-m", "bnce", *options(corpus, place / "two")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ended = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    records = [json.loads(stdout) for stdout, _ in ended]
    assert any(record["finished"] for record in records), "whoever ends last has all rows"
    assert not any(record["failed"] for record in records)
    assert {row["run"] for record in records for row in record["rows"]} == set(ROWS)
    assert bnce(*options(corpus, place / "one")).status == 0
    for row in ROWS:
        found, expected = ((place / name / row / "evaluation.json").read_text() for name in ("two", "one"))
        assert found == expected
        steps = [json.loads(line)["step"] for line in (place / "two" / row / "metrics.jsonl").read_text().splitlines()]
        assert steps == sorted(set(steps))
        assert states_of(place / "two" / row) == []
