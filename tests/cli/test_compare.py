"""`bnce compare`: what goes to standard output, what to standard error, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import runpy
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bnce import UserError
from bnce.cli.compare import compare

# The one writer of run directories lives with the report's tests, out of reach of this folder's imports.
write_run = runpy.run_path(str(Path(__file__).parents[1] / "report" / "conftest.py"))["write_run_directory"]

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(compare)


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def runs(tmp_path):
    return [
        write_run(tmp_path / "runs" / "softmax", "rnn", "softmax"),
        write_run(tmp_path / "runs" / "bnce", "rnn", "bnce"),
    ]


def test_prints_the_table_and_its_conditions(runs):
    result = run(*runs)
    assert result.exit_code == 0
    assert result.stderr == ""
    (row,) = [line for line in result.stdout.splitlines() if line.strip().startswith("RNN (B-NCE)")]
    assert row.split("  ", 1)[1].split() == [
        "87.6", "82.5", "43.7K", "64.6M", "7.41", "9.06", "±", "0.45", "4", "3", "h", "23", "min",
    ]  # fmt: skip
    assert "Measured on split test, 7,800,000 tokens" in " ".join(result.stdout.split())


def test_what_a_run_warned_of_is_printed_below_the_table(runs, tmp_path):
    astray = write_run(tmp_path / "astray", "ffnn", summary={"warnings": ["It became worse [than] at the start."]})
    assert "5-gram FFNN (B-NCE): It became worse [than] at the start." in run(*runs, astray).stdout


def test_a_narrow_terminal_leaves_out_whole_columns(runs, monkeypatch):
    from rich.console import Console

    narrow = Console(width=60, force_terminal=True, color_system=None, highlight=False, soft_wrap=True)
    monkeypatch.setattr(sys.modules[compare.__module__], "stdout", narrow)
    output = run(*runs).stdout
    table = output[: output.index("Corpus:")]
    assert "…" not in table
    assert "43.7K" in table
    assert "train time" not in table
    assert max(map(len, table.splitlines())) <= 60
    assert "Columns left out because the terminal is too narrow: " in output
    assert "train time; --format md shows all columns." in output


def test_json_is_alone_on_standard_output(runs, tmp_path):
    other = write_run(tmp_path / "other", "ffnn", summary={"vocabulary_digest": "ffffffff00"})
    result = run(*runs, other, "--json", "--out", tmp_path / "out", "--title", "Mine")
    record = json.loads(result.stdout)
    assert record["title"] == "Mine"
    assert [row["run"] for row in record["rows"]] == ["other", "softmax", "bnce"]
    assert "warning: 5-gram FFNN (B-NCE) cannot be compared fairly" in result.stderr


@pytest.mark.parametrize(
    ("form", "start"),
    [
        ("md", "## Language"),
        ("latex", "% Language"),
        ("csv", "label,"),
        ("json", "{"),
        ("html", "<!doctype html>"),
    ],
)
def test_format_prints_that_form_only(runs, form, start):
    result = run(*runs, "--format", form)
    assert result.stdout.startswith(start)
    assert result.stdout.endswith("\n")
    assert result.stderr == ""


def test_csv_can_be_piped(runs):
    rows = list(csv.DictReader(io.StringIO(run(*runs, "--format", "csv").stdout)))
    assert [float(row["ppl_f"]) for row in rows] == [79.7, 82.5]


def test_out_writes_every_file_and_prints_the_table(runs, tmp_path):
    result = run(*runs, "--out", tmp_path / "report")
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == [
        "report.html", "table.csv", "table.json", "table.md", "table.tex",
    ]  # fmt: skip
    assert "RNN (B-NCE)" in result.stdout
    assert "Wrote table.md" in result.stderr


def test_names_are_not_markup(tmp_path):
    paths = [write_run(tmp_path / name) for name in ("[red]x", "<b>&")]
    output = run(*paths).stdout
    assert "RNN (B-NCE), [red]x" in output
    assert "RNN (B-NCE), <b>&" in output


def test_refusals(runs, tmp_path):
    with pytest.raises(UserError, match=r"Unknown format 'htm'.*Did you mean 'html'\?"):
        run(*runs, "--format", "htm")
    with pytest.raises(UserError, match="--json and --format csv cannot be used together"):
        run(*runs, "--json", "--format", "csv")
    with pytest.raises(UserError, match="There is no run directory"):
        run(tmp_path / "missing")
    assert run().exit_code == 2


def test_help_has_examples_on_lines_of_their_own():
    lines = [line.strip() for line in run("--help").stdout.splitlines()]
    assert "bnce compare runs/*" in lines


def test_a_run_without_figures_is_left_out_of_many_and_refused_alone(runs, tmp_path):
    waiting = write_run(tmp_path / "runs" / "waiting", "rnn", "snce")
    for name in ("metrics.jsonl", "evaluation.json"):
        (waiting / name).unlink()
    result = run(*runs, waiting)
    assert result.exit_code == 0
    assert result.stderr.count("\n") == 1
    assert f"'{waiting}' is left out because it has no results" in result.stderr.replace("\n", "")
    assert "S-NCE" not in result.stdout
    with pytest.raises(UserError, match="has no metrics yet"):
        run(waiting)
