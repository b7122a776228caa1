"""A run directory is read as far as it goes, and refused in one sentence when that is not far enough."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bnce import UserError
from bnce.report.runs import number, read_run, read_runs


def refusal(path):
    with pytest.raises(UserError) as caught:
        read_run(path)
    message = str(caught.value)
    assert str(path) in message
    assert message.endswith(".")
    assert "\n" not in message
    return message


def test_reads_everything(tmp_path, write_run):
    run = read_run(write_run(tmp_path / "a", "rnn", "snce", num_noise=100))
    assert run.name == "a"
    assert run.settings("loss")["num_noise"] == 100
    assert run.settings("none") == {}
    assert run.summary["vocab_size"] == 80_000
    assert len(run.metrics) == 12
    assert run.evaluation is not None
    assert run.evaluation["ppl_f"] == 84.2


def test_a_torn_last_line_is_ignored(tmp_path, write_run):
    path = write_run(tmp_path / "a", num_evaluations=3)
    with open(path / "metrics.jsonl", "a") as metrics:
        metrics.write('{"step": 4000, "ppl_f": 8')
    assert [record["step"] for record in read_run(path).metrics] == [1000, 2000, 3000]


def test_a_broken_line_elsewhere_is_named(tmp_path, write_run):
    path = write_run(tmp_path / "a", num_evaluations=1)
    whole = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text('{"step": 500, "pp\n' + whole)
    assert "Line 1 of" in refusal(path)


def test_steps_that_a_resumed_run_repeats_count_once(tmp_path, write_run):
    path = write_run(tmp_path / "a", num_evaluations=3)
    with open(path / "metrics.jsonl", "a") as metrics:
        metrics.write('{"step": 2000, "ppl_f": 1.0}\n{"step": 2500, "ppl_f": 2.0}\n')
    assert [(r["step"], r["ppl_f"]) for r in read_run(path).metrics[1:]] == [(2000, 1.0), (2500, 2.0)]


def test_without_an_evaluation_the_metrics_are_enough(tmp_path, write_run):
    assert read_run(write_run(tmp_path / "a", evaluated=False)).evaluation is None


def test_without_metrics_the_evaluation_is_enough(tmp_path, write_run):
    path = write_run(tmp_path / "a")
    (path / "metrics.jsonl").unlink()
    assert read_run(path).metrics == ()


def test_no_metrics_yet(tmp_path, write_run):
    path = write_run(tmp_path / "a", evaluated=False)
    (path / "metrics.jsonl").write_text('{"step": 10')
    assert "no metrics yet" in refusal(path)


def test_not_a_run_directory(tmp_path, write_run):
    assert "There is no run directory" in refusal(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    assert "has no config.toml" in refusal(tmp_path / "empty")
    (tmp_path / "file").write_text("")
    assert "is not a run directory" in refusal(tmp_path / "file")
    (tmp_path / "circle").symlink_to("circle")
    assert "There is no run directory" in refusal(tmp_path / "circle")
    write_run(tmp_path / "runs" / "rnn")
    assert f"such as '{tmp_path / 'runs' / 'rnn'}'" in refusal(tmp_path / "runs")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.toml", "model = [", "cannot be read as TOML"),
        ("config.toml", 'model = "rnn"\n[loss]\nname = "bnce"\n', "name no model"),
        ("config.toml", '[model]\nname = "rnn"\n[loss]\nname = 3\n', "name no loss"),
        ("summary.json", '{"seed": ', "cannot be read as a JSON object"),
        ("summary.json", "[]", "cannot be read as a JSON object"),
        ("evaluation.json", "", "cannot be read as a JSON object"),
        ("evaluation.json", "[" * 9999, "it is nested too deeply"),
        ("config.toml", "a = " + "[" * 9999, "it is nested too deeply"),
    ],
)
def test_unreadable_files(tmp_path, write_run, name, content, says):
    path = write_run(tmp_path / "a")
    (path / name).write_text(content)
    assert says in refusal(path)


def test_config_that_is_not_utf8(tmp_path, write_run):
    path = write_run(tmp_path / "a")
    (path / "config.toml").write_bytes(b'recipe = "\xff"')
    assert "cannot be read as TOML" in refusal(path)


def test_a_run_that_never_began(tmp_path, write_run):
    path = write_run(tmp_path / "a")
    (path / "summary.json").unlink()
    assert "has no summary.json, so its training never started: train it, or leave this run out." in refusal(path)
    (path / "model.safetensors").write_bytes(b"")
    assert "has no summary.json, because it is an exported model: give the run that it came from." in refusal(path)


def test_a_run_given_twice_is_read_once(tmp_path, write_run, monkeypatch):
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    monkeypatch.chdir(tmp_path)
    assert [run.path for run in read_runs([a, b, Path("a"), b])] == [a, b]


def test_what_is_not_finite_is_absent():
    record = json.loads('{"a": NaN, "b": Infinity, "c": true, "d": "8", "e": 8}')
    assert [number(record, key) for key in "abcdef"] == [None, None, None, None, 8, None]
