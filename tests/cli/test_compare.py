"""`bnce compare`: what goes to standard output, what to standard error, and what is refused."""

from __future__ import annotations

import re

import pytest

from tests.report.conftest import write_run_directory as write_run


@pytest.fixture
def runs(tmp_path):
    return [
        write_run(tmp_path / "runs" / "softmax", "rnn", "softmax"),
        write_run(tmp_path / "runs" / "bnce", "rnn", "bnce"),
    ]


def test_prints_the_table_and_its_conditions(bnce, runs):
    result = bnce("compare", *runs)
    assert result.status == 0
    assert result.stderr == ""
    (row,) = [line for line in result.stdout.splitlines() if line.strip().startswith("RNN (B-NCE)")]
    assert row.split("  ", 1)[1].split() == [
        "87.6", "82.5", "43.7K", "64.6M", "7.41", "9.06", "±", "0.45", "4", "3", "h", "23", "min",
    ]  # fmt: skip
    assert "Measured on split test, 7,800,000 tokens" in " ".join(result.stdout.split())


def test_what_a_run_warned_of_is_printed_below_the_table(bnce, runs, tmp_path):
    astray = write_run(tmp_path / "astray", "ffnn", summary={"warnings": ["It became worse [than] at the start."]})
    assert "5-gram FFNN (B-NCE): It became worse [than] at the start." in bnce("compare", *runs, astray).stdout


def test_a_narrow_terminal_leaves_out_whole_columns(bnce, runs, monkeypatch):
    monkeypatch.setattr("bnce.cli.console.stdout.width", 60)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    output = re.sub(r"\x1b\[[\d;]*m", "", bnce("compare", *runs).stdout)
    table = output[: output.index("Corpus:")]
    assert "…" not in table
    assert "43.7K" in table
    assert "train time" not in table
    assert max(map(len, table.splitlines())) <= 60
    assert "Columns left out because the terminal is too narrow: " in output
    assert "train time; --format markdown shows all columns." in output


def test_json_is_alone_on_standard_output(bnce, runs, tmp_path):
    other = write_run(tmp_path / "other", "ffnn", summary={"vocabulary_digest": "ffffffff00"})
    result = bnce("compare", *runs, other, "--json", "--out", tmp_path / "out")
    record = result.json
    assert record["title"] == "Language models on ltcb"
    assert [row["run"] for row in record["rows"]] == ["other", "softmax", "bnce"]
    assert "warning: 5-gram FFNN (B-NCE) cannot be compared fairly" in result.stderr


def test_markdown_is_alone_on_standard_output(bnce, runs):
    result = bnce("compare", *runs, "--format", "markdown")
    assert result.stdout.startswith("## Language models on ltcb\n\n| model (loss) | PPLn |")
    assert result.stdout.endswith("\n")
    assert result.stderr == ""


def test_out_writes_every_file_and_prints_the_table(bnce, runs, tmp_path):
    report = tmp_path / "report :cat:[b]"  # which is no markup
    result = bnce("compare", *runs, "--out", report)
    assert {path.name for path in report.iterdir()} == {"report.html", "table.json", "table.md"}
    assert "RNN (B-NCE)" in result.stdout
    assert f"Wrote report.html, table.md and table.json to {report}." in result.stderr


def test_names_are_not_markup(bnce, tmp_path):
    paths = [write_run(tmp_path / name) for name in ("[red]x", "<b>&")]
    output = bnce("compare", *paths).stdout
    assert "RNN (B-NCE), [red]x" in output
    assert "RNN (B-NCE), <b>&" in output


def test_refusals(refused, runs, tmp_path):
    told = refused("compare", *runs, "--format", "markdwn")
    assert "Unknown format 'markdwn'" in told
    assert told.endswith("Did you mean 'markdown'?")
    both = refused("compare", *runs, "--json", "--format", "markdown")
    assert "--json and --format markdown cannot be used together" in both
    assert "There is no run directory" in refused("compare", tmp_path / "missing")
    refused("compare")


def test_a_run_without_figures_is_left_out_of_many_and_refused_alone(bnce, refused, runs, tmp_path):
    waiting = write_run(tmp_path / "runs" / "waiting", "rnn", "snce")
    for name in ("metrics.jsonl", "evaluation.json"):
        (waiting / name).unlink()
    result = bnce("compare", *runs, waiting)
    assert result.status == 0
    assert result.stderr.count("\n") == 1
    assert f"'{waiting}' is left out because it has no results" in result.stderr.replace("\n", "")
    assert "S-NCE" not in result.stdout
    assert "has no metrics yet" in refused("compare", waiting)
