"""The table parses as what it claims to be, in Markdown and as JSON."""

from __future__ import annotations

import json

import pytest

ODD_NAME = r"<b>& 50% $x_1$ a|b #{~}^\*"


@pytest.fixture
def runs(tmp_path, write_run):
    return [
        write_run(tmp_path / "1", "ffnn", "softmax"),
        write_run(tmp_path / "2", "ffnn", "bnce"),
        write_run(tmp_path / "3", "rnn", "softmax"),
        write_run(tmp_path / "plain", "rnn", "bnce"),
        write_run(tmp_path / ODD_NAME, "rnn", "bnce"),
        write_run(tmp_path / "6", "relu-lstm", "snce", num_noise=100, evaluated=False),
    ]


def test_json(bnce, runs):
    record = bnce("compare", *runs, "--json").json
    assert [row["ppl_f"] for row in record["rows"][:4]] == [110.2, 113.7, 79.7, 82.5]
    assert record["rows"][0]["ppl_n"] is None
    assert record["rows"][0]["num_parameters"] == 48_800_000
    assert record["conditions"]["splits"] == ["test", "valid"]
    assert record["conditions"]["vocab_sizes"] == [80_000]


def test_a_calibrated_softmax_has_a_ppl_n(tmp_path, write_run, compare_runs):
    comparison = compare_runs([write_run(tmp_path / "a", "ffnn", "softmax", evaluation={"ppl_n": 111.3})])
    assert comparison.cells[0][1:3] == ["111.3", "110.2"]


def test_markdown(runs, compare_runs):
    comparison = compare_runs(runs)
    head, cells, lines = comparison.head, comparison.cells, comparison.markdown.splitlines()
    assert head == [
        "model (loss)", "PPLn", "PPLf", "TS (w/s)", "NoP", "× softmax", "log Z", "epochs", "train time",
    ]  # fmt: skip
    assert {len(row) for row in cells} == {len(head)}
    assert cells[0][:6] == ["5-gram FFNN (softmax)", "---", "110.2", "8.4K", "48.8M", "1.00"]
    assert cells[1][:6] == ["5-gram FFNN (B-NCE)", "119.4", "113.7", "35.1K", "48.8M", "4.18"]
    assert cells[5][5] == "—"
    assert "&lt;b&gt;&amp;" in cells[4][0]
    assert "<" not in "".join(lines)
    assert sum(line.startswith("- ") for line in lines) == len(comparison.conditions.statements)


def test_files_are_written_over(bnce, tmp_path, runs):
    out = tmp_path / "deep" / "out"
    for _ in range(2):
        assert bnce("compare", *runs, "--out", out).status == 0
    assert {path.name for path in out.iterdir()} == {"report.html", "table.md", "table.json"}
    assert (out / "table.md").read_text(encoding="utf-8") == bnce("compare", *runs, "--format", "markdown").stdout
    assert json.loads((out / "table.json").read_text(encoding="utf-8")) == bnce("compare", *runs, "--json").json


def test_files_need_a_directory(refused, tmp_path, runs):
    (tmp_path / "taken").write_text("")
    assert f"Cannot write to the output directory '{tmp_path / 'taken'}'" in refused(
        "compare", *runs[:2], "--out", tmp_path / "taken"
    )


def test_figures_by_sentence_have_a_column_of_their_own(tmp_path, write_run, compare_runs, report):
    sentences = {"ppl_n": 99.5, "ppl_f": 98.5, "log_z_mean": 9.1}
    runs = [write_run(tmp_path / "a", evaluation={"by_sentence": sentences}), write_run(tmp_path / "b", loss="snce")]
    comparison = compare_runs(runs)
    assert comparison.head[6:9] == ["log Z", "PPLf by sentence", "epochs"]
    assert [row[7] for row in comparison.cells] == ["—", "98.5"]
    assert "PPLn and PPLf are in context" in comparison.markdown
    assert "Do not compare one with the other." in comparison.markdown
    second, first = comparison.rows
    assert (first.ppl_n_by_sentence, first.ppl_f_by_sentence) == (99.5, 98.5)
    assert second.ppl_f_by_sentence is None
    assert "by sentence" not in compare_runs(runs[1:]).markdown
    assert " by sentence</th>" in report(runs).page
