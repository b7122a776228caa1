"""metrics.jsonl: what is written comes back, and what is no evaluation is left out and counted."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from bnce import UserError
from bnce.runs.directory import RunDirectory
from bnce.runs.metrics import METRICS_FILE, append_metrics, keep_metrics_up_to, read_metrics


def test_metrics_are_kept_up_to_a_step(run: RunDirectory) -> None:
    assert read_metrics(run.path).records == []
    for step in (10, 20, 30):
        append_metrics(run.path, {"step": step, "ppl_f": 1 / 3})
    keep_metrics_up_to(run.path, 20)
    assert read_metrics(run.path).records == [{"step": 10, "ppl_f": 1 / 3}, {"step": 20, "ppl_f": 1 / 3}]
    append_metrics(run.path, {"step": 25})
    lines = (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [10, 20, 25]


def test_a_torn_line_of_metrics_is_left_out(run: RunDirectory) -> None:
    append_metrics(run.path, {"step": 10})
    with open(run.path / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 20, "pp')
    assert read_metrics(run.path).records == [{"step": 10}]
    keep_metrics_up_to(run.path, 100)
    append_metrics(run.path, {"step": 20})
    assert read_metrics(run.path).records == [{"step": 10}, {"step": 20}]


def test_metrics_on_a_full_disk(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    append_metrics(run.path, {"step": 10})

    def full(*arguments: object, **keywords: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match=r"The disk is full: '.*metrics.jsonl'"):
        append_metrics(run.path, {"step": 20})
    assert read_metrics(run.path).records == [{"step": 10}]


def test_lines_that_are_no_evaluations_are_told(run: RunDirectory) -> None:
    lines = ['{"step": 10, "ppl_f": null}', '{"step": "20"}', '{"step": 30, "ppl_f": "low"}', "[]", '{"step": 40']
    (run.path / METRICS_FILE).write_text("\n".join(lines), encoding="utf-8")
    metrics = read_metrics(run.path)
    assert metrics.records == [{"step": 10, "ppl_f": None}]
    assert list(metrics.damaged) == [2, 3, 4, 5]
    assert metrics.damaged[2] == "its step is '20'"
    assert metrics.damaged[3] == "its ppl_f is 'low'"
    assert metrics.num_lines == 5


def test_what_was_done_last_holds_where_steps_are_repeated(run: RunDirectory) -> None:
    lines = [f'{{"step": {step}, "ppl_f": {place}}}' for place, step in enumerate((10, 20, 30, 20, 25))]
    (run.path / METRICS_FILE).write_text("\n".join(lines), encoding="utf-8")
    metrics = read_metrics(run.path)
    assert [(record["step"], record["ppl_f"]) for record in metrics.records] == [(10, 0), (20, 3), (25, 4)]
    assert metrics.damaged == {}
