"""benchmarks/kept_runs.py: the figures of runs in one file, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import kept_runs


def write(directory: Path, status: str) -> None:
    directory.mkdir(parents=True)
    (directory / "summary.json").write_text(json.dumps({"status": status, "command": "bnce --out /here/out"}))
    (directory / "evaluation.json").write_text(json.dumps({"ppl_f": 2.5, "detail": [1, 2]}))
    (directory / "model.safetensors").write_bytes(b"large")


def test_finished_runs_come_back_without_what_is_large(tmp_path: Path) -> None:
    made = tmp_path / "made"
    write(made / "trials" / "a-1", "finished")
    write(made / "b-seed2", "running")
    (made / "choices.json").write_text("{}")
    lines = [json.dumps(record) for record in kept_runs.pack(made, {"/here/": ""})]
    again = tmp_path / "again"
    kept_runs.unpack(lines, again)
    found = sorted(str(path.relative_to(again)) for path in again.rglob("*") if path.is_file())
    assert found == ["choices.json", "trials/a-1/evaluation.json", "trials/a-1/summary.json"]
    assert json.loads((again / "trials/a-1/evaluation.json").read_text()) == {"ppl_f": 2.5}
    assert json.loads((again / "trials/a-1/summary.json").read_text())["command"] == "bnce --out out"
    (again / "choices.json").write_text("mine")
    kept_runs.unpack(lines, again)
    assert (again / "choices.json").read_text() == "mine", "what is there stays"


@pytest.mark.parametrize(
    "record",
    [{"run": "../out", "files": {}}, {"run": "a", "files": {"model.py": "code"}}],
    ids=["outside", "other file"],
)
def test_nothing_else_is_written(tmp_path: Path, record: dict[str, object]) -> None:
    with pytest.raises(SystemExit):
        kept_runs.unpack([json.dumps(record)], tmp_path / "experiment")
    assert not (tmp_path / "out").exists()
