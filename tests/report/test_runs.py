"""A run directory is read as far as it goes, and refused in one sentence when that is not far enough."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def refusal(refused):
    """Give the sentence in which `bnce compare` refuses a directory, which it names."""

    def compare(path):
        message = refused("compare", path)
        assert str(path) in message
        return message

    return compare


def test_a_torn_last_line_is_ignored(tmp_path, write_run, compare_runs):
    path = write_run(tmp_path / "a", evaluated=False, num_evaluations=3)
    (before,) = compare_runs([path]).rows
    with open(path / "metrics.jsonl", "a") as metrics:
        metrics.write('{"step": 4000, "ppl_f": 8')
    assert compare_runs([path]).rows == [before]


def test_a_broken_line_elsewhere_is_named(tmp_path, write_run, refusal):
    path = write_run(tmp_path / "a", num_evaluations=1)
    whole = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text('{"step": 500, "pp\n' + whole)
    assert "Line 1 of" in refusal(path)


def test_steps_that_a_resumed_run_repeats_count_once(tmp_path, write_run, compare_runs):
    path = write_run(tmp_path / "a", evaluated=False, num_evaluations=3)
    with open(path / "metrics.jsonl", "a") as metrics:
        metrics.write('{"step": 2000, "ppl_f": 1.0}\n{"step": 2500, "ppl_f": 2.0}\n')
    (row,) = compare_runs([path]).rows
    assert row.ppl_f == 2.0
    assert row.peak_memory_bytes == 3 * 2**30 + 1, "of the first evaluation, the only one that still counts"


def test_without_metrics_the_evaluation_is_enough(tmp_path, write_run, compare_runs):
    path = write_run(tmp_path / "a")
    (path / "metrics.jsonl").unlink()
    (row,) = compare_runs([path]).rows
    assert (row.split, row.peak_memory_bytes) == ("test", None)


def test_no_metrics_yet(tmp_path, write_run, refusal):
    path = write_run(tmp_path / "a", evaluated=False)
    (path / "metrics.jsonl").write_text('{"step": 10')
    assert "no metrics yet" in refusal(path)


def test_not_a_run_directory(tmp_path, write_run, refusal):
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
        ("config.toml", b"model = [", "cannot be read as TOML"),
        ("config.toml", b'recipe = "\xff"', "cannot be read as TOML"),
        ("config.toml", b'model = "rnn"\n[loss]\nname = "bnce"\n', "name no model"),
        ("config.toml", b'[model]\nname = "rnn"\n[loss]\nname = 3\n', "name no loss"),
        ("summary.json", b'{"seed": ', "cannot be read as a JSON object"),
        ("summary.json", b"[]", "cannot be read as a JSON object"),
        ("evaluation.json", b"", "cannot be read as a JSON object"),
    ],
)
def test_unreadable_files(tmp_path, write_run, name, content, says, refusal):
    path = write_run(tmp_path / "a")
    (path / name).write_bytes(content)
    assert says in refusal(path)


def test_a_run_that_never_began(tmp_path, write_run, refusal):
    path = write_run(tmp_path / "a")
    (path / "summary.json").unlink()
    assert "has no summary.json, so its training never started: train it, or leave this run out." in refusal(path)
    (path / "model.safetensors").write_bytes(b"")
    assert "has no summary.json, because it is an exported model: give the run that it came from." in refusal(path)


def test_a_run_given_twice_is_read_once(tmp_path, write_run, compare_runs, monkeypatch):
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    monkeypatch.chdir(tmp_path)
    assert [row.run for row in compare_runs([a, b, Path("a"), b]).rows] == ["a", "b"]


def test_what_is_not_finite_is_absent(tmp_path, write_run, compare_runs):
    odd = {"ppl_n": float("nan"), "ppl_f": float("inf"), "log_z_mean": True, "log_z_std": "8", "log_z": 8}
    (row,) = compare_runs([write_run(tmp_path / "a", evaluation=odd)]).rows
    found = (row.ppl_n, row.ppl_f, row.log_z_mean_nats, row.log_z_std_nats, row.log_z_constant_nats)
    assert found == (None, None, None, None, 8)
