"""The table parses as what it claims to be, in Markdown and as JSON."""

from __future__ import annotations

import json
import re

import pytest

from bnce import UserError
from bnce.report.comparison import compare_runs
from bnce.report.page import to_html, write_report
from bnce.report.table import COLUMNS, to_markdown

ODD_NAME = r"<b>& 50% $x_1$ a|b #{~}^\*"


@pytest.fixture
def comparison(tmp_path, write_run):
    return compare_runs(
        [
            write_run(tmp_path / "1", "ffnn", "softmax"),
            write_run(tmp_path / "2", "ffnn", "bnce"),
            write_run(tmp_path / "3", "rnn", "softmax"),
            write_run(tmp_path / "plain", "rnn", "bnce"),
            write_run(tmp_path / ODD_NAME, "rnn", "bnce"),
            write_run(tmp_path / "6", "relu-lstm", "snce", num_noise=100, evaluated=False),
        ]
    )


def as_json(comparison, place):
    write_report(comparison, place)
    return json.loads((place / "table.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)


def test_json(comparison, tmp_path):
    record = as_json(comparison, tmp_path / "out")
    assert [row["ppl_f"] for row in record["rows"][:4]] == [110.2, 113.7, 79.7, 82.5]
    assert record["rows"][0]["ppl_n"] is None
    assert record["rows"][0]["num_parameters"] == 48_800_000
    assert record["conditions"]["splits"] == ["test", "valid"]
    assert record["conditions"]["vocab_sizes"] == [80_000]


def test_json_has_no_word_for_what_is_not_finite(tmp_path, write_run):
    path = write_run(tmp_path / "a", evaluation={"ppl_f": float("inf"), "ppl_n": float("nan")})
    record = as_json(compare_runs([path]), tmp_path / "out")
    assert record["rows"][0]["ppl_f"] is None


def test_a_calibrated_softmax_has_a_ppl_n(tmp_path, write_run):
    comparison = compare_runs([write_run(tmp_path / "a", "ffnn", "softmax", evaluation={"ppl_n": 111.3})])
    assert "| 111.3 | 110.2 |" in to_markdown(comparison)


def test_markdown(comparison):
    lines = to_markdown(comparison).splitlines()
    table = [line for line in lines if line.startswith("|")]
    # A bar inside a cell is escaped, so that only the table's own bars part cells.
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]
    assert {len(row) for row in cells} == {len(COLUMNS)}
    assert cells[0][:5] == ["model (loss)", "PPLn", "PPLf", "TS (w/s)", "NoP"]
    assert cells[2][:6] == ["5-gram FFNN (softmax)", "---", "110.2", "8.4K", "48.8M", "1.00"]
    assert cells[3][:6] == ["5-gram FFNN (B-NCE)", "119.4", "113.7", "35.1K", "48.8M", "4.18"]
    assert cells[7][5] == "—"
    assert "&lt;b&gt;&amp;" in cells[6][0]
    assert "<" not in "".join(lines)
    assert sum(line.startswith("- ") for line in lines) == len(comparison.conditions.statements)


def test_files_are_written_over(tmp_path, comparison):
    out = tmp_path / "deep" / "out"
    for _ in range(2):
        write_report(comparison, out)
    written = {path.name: path.read_text(encoding="utf-8") for path in out.iterdir()}
    assert set(written) == {"report.html", "table.md", "table.json"}
    assert written["table.md"] == to_markdown(comparison)
    assert written["report.html"] == to_html(comparison)


def test_files_need_a_directory(tmp_path, comparison):
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match=r"Cannot write to the output directory '.*taken'"):
        write_report(comparison, tmp_path / "taken")


def test_figures_by_sentence_have_a_column_of_their_own(tmp_path, write_run):
    sentences = {"ppl_n": 99.5, "ppl_f": 98.5, "log_z_mean": 9.1}
    runs = [write_run(tmp_path / "a", evaluation={"by_sentence": sentences}), write_run(tmp_path / "b", loss="snce")]
    comparison = compare_runs(runs)
    written = to_markdown(comparison)
    assert "| log Z | PPLf by sentence | epochs |" in written
    assert [line.split(" | ")[7] for line in written.splitlines() if line.startswith("| RNN")] == ["—", "98.5"]
    assert "PPLn and PPLf are in context" in written
    assert "Do not compare one with the other." in written
    assert " by sentence</th>" in to_html(comparison)
    (second, first) = as_json(comparison, tmp_path / "out")["rows"]
    assert (first["ppl_n_by_sentence"], first["ppl_f_by_sentence"]) == (99.5, 98.5)
    assert second["ppl_f_by_sentence"] is None
    assert "by sentence" not in to_markdown(compare_runs(runs[1:]))
