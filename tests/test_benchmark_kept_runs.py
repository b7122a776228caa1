"""benchmarks/kept_runs.py: the figures of runs in one file, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import kept_runs


def write(directory: Path, status: str) -> None:
    directory.mkdir(parents=True)
    (directory / "summary.json").write_text(json.dumps({"status": status, "command": "bnce --out /here/out"}))
    (directory / "config.toml").write_text('corpus = "/here/corpus"')
    (directory / "evaluation.json").write_text(json.dumps({"ppl_f": 2.5, "detail": [1, 2]}))
    (directory / "model.safetensors").write_bytes(b"large")


def test_finished_runs_come_back_without_what_is_large(tmp_path: Path) -> None:
    made = tmp_path / "made"
    write(made / "trials" / "a-1", "finished")
    write(made / "b-seed2", "running")
    (made / "choices.json").write_text("{}")
    lines = [json.dumps(record) for record in kept_runs.pack(made, {"/here/": ""})]
    again, corpus = tmp_path / "again", tmp_path / "corpus"
    corpus.mkdir()
    for name in kept_runs.OF_CORPUS:
        (corpus / name).write_text(name)
    kept_runs.unpack(lines, again, corpus)
    found = sorted(str(path.relative_to(again)) for path in again.rglob("*") if path.is_file())
    of_run = ["config.toml", "counts.npy", "evaluation.json", "summary.json", "vocab.txt"]
    assert found == ["choices.json", *(f"trials/a-1/{name}" for name in of_run)]
    assert json.loads((again / "trials/a-1/evaluation.json").read_text()) == {"ppl_f": 2.5}
    assert json.loads((again / "trials/a-1/summary.json").read_text())["command"] == "bnce --out out"
    (again / "choices.json").write_text("mine")
    kept_runs.unpack(lines, again, corpus)
    assert (again / "choices.json").read_text() == "mine", "what is there stays"


@pytest.mark.parametrize(
    "record",
    [{"run": "../out", "files": {}}, {"run": "a", "files": {"model.py": "code"}}],
    ids=["outside", "other file"],
)
def test_nothing_else_is_written(tmp_path: Path, record: dict[str, object]) -> None:
    with pytest.raises(SystemExit):
        kept_runs.unpack([json.dumps(record)], tmp_path / "experiment", tmp_path)
    assert not (tmp_path / "out").exists()
