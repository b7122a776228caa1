"""Every form of the table parses as what it claims to be and holds the same numbers."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from bnce import UserError
from bnce.report.comparison import compare_runs
from bnce.report.formats import FILES, FORMATS, render, write_files
from bnce.report.table import COLUMNS, to_csv, to_json, to_latex, to_markdown

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


def test_csv(comparison):
    rows = list(csv.DictReader(io.StringIO(to_csv(comparison))))
    assert len(rows) == 6
    assert {"words_per_second", "train_seconds", "log_z_mean_nats", "peak_memory_bytes"} <= rows[0].keys()
    assert rows[0]["ppl_n"] == ""
    assert float(rows[0]["words_per_second"]) == 8400.0
    assert float(rows[1]["speedup_over_softmax"]) == pytest.approx(35.1 / 8.4)
    assert rows[4]["label"] == f"RNN (B-NCE), {ODD_NAME}"
    assert rows[5]["split"] == "valid"
    assert rows[5]["comparable"] == "False"


def test_json(comparison):
    record = json.loads(to_json(comparison))
    assert [row["ppl_f"] for row in record["rows"][:4]] == [110.2, 113.7, 79.7, 82.5]
    assert record["rows"][0]["ppl_n"] is None
    assert record["rows"][0]["num_parameters"] == 48_800_000
    assert record["conditions"]["splits"] == ["test", "valid"]
    assert record["conditions"]["vocab_sizes"] == [80_000]


def test_json_has_no_word_for_what_is_not_finite(tmp_path, write_run):
    path = write_run(tmp_path / "a", evaluation={"ppl_f": float("inf"), "ppl_n": float("nan")})
    record = json.loads(to_json(compare_runs([path])), parse_constant=pytest.fail)
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


def test_latex(comparison):
    lines = to_latex(comparison).splitlines()
    text = "\n".join(lines)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    bare = re.sub(r"\\[{}$&%_#]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    body = bare[bare.index(r"\begin{tabular}") : bare.index(r"\end{tabular}")].splitlines()
    rows = [line for line in body if line.endswith(r"\\")]
    assert [line.count("&") for line in rows] == [len(COLUMNS) - 1] * 7
    assert r"  5-gram FFNN (\textit{softmax}) & --- & 110.2 & 8.4K & 48.8M & 1.00 & 11.50 $\pm$ 1.40" in text
    assert r"PPL$^n$ & PPL$^f$ & TS (w/s) & NoP" in text
    assert r"$<$b$>$\& 50\% \$x\_1\$ a$|$b \#\{\textasciitilde{}\}\textasciicircum{}\textbackslash{}*" in text
    assert "toprule" not in text
    # The paper's double lines stand between families of models: FFNN, RNN, LSTM.
    assert text.count("\\hline\n  \\hline\n") == 2


def test_latex_has_one_line_between_models_of_a_family(tmp_path, write_run):
    paths = [
        write_run(tmp_path / "lstm", "relu-lstm"),
        write_run(tmp_path / "rnn"),
        write_run(tmp_path / "relu"),
    ]
    settings = (paths[2] / "config.toml").read_text()
    (paths[2] / "config.toml").write_text(settings.replace('"rnn"', '"relu-rnn"'))
    lines = to_latex(compare_runs(paths)).splitlines()
    kinds = "".join("-" if line == r"  \hline" else "r" for line in lines if line.startswith("  ")).rstrip("r")
    # Heading, RNN, ReLu-RNN of the same family, ReLu-LSTM of another.
    assert kinds == "-r-r-r--r-"


def test_a_title_cannot_leave_its_comment(tmp_path, write_run):
    latex = to_latex(compare_runs([write_run(tmp_path / "a")], "one\n\\input{two}"))
    assert latex.splitlines()[1].startswith(r"\begin{tabular}")


def test_files_are_written_over(tmp_path, comparison):
    out = tmp_path / "deep" / "out"
    for _ in range(2):
        written = write_files(comparison, out)
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES.values())
    assert [path.name for path in written] == list(FILES.values())
    for form, name in FILES.items():
        assert (out / name).read_text(encoding="utf-8") == render(comparison, form)


def test_files_need_a_directory(tmp_path, comparison):
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match=r"Cannot write to the output directory '.*taken'"):
        write_files(comparison, tmp_path / "taken")


def test_forms(comparison):
    assert set(FORMATS) == {"table", *FILES}
    with pytest.raises(UserError, match="Did you mean 'latex'"):
        render(comparison, "latx")


def test_figures_by_sentence_have_a_column_of_their_own(tmp_path, write_run):
    sentences = {"ppl_n": 99.5, "ppl_f": 98.5, "log_z_mean": 9.1}
    runs = [write_run(tmp_path / "a", evaluation={"by_sentence": sentences}), write_run(tmp_path / "b", loss="snce")]
    comparison = compare_runs(runs)
    written = to_markdown(comparison)
    assert "| log Z | PPLf by sentence | epochs |" in written
    assert [line.split(" | ")[7] for line in written.splitlines() if line.startswith("| RNN")] == ["—", "98.5"]
    assert "PPLn and PPLf are in context" in written
    assert "Do not compare one with the other." in written
    assert "PPL$^f$ by sentence" in to_latex(comparison)
    assert " by sentence</th>" in render(comparison, "html")
    (second, first) = json.loads(to_json(comparison))["rows"]
    assert (first["ppl_n_by_sentence"], first["ppl_f_by_sentence"]) == (99.5, 98.5)
    assert second["ppl_f_by_sentence"] is None
    assert "by sentence" not in to_markdown(compare_runs(runs[1:]))
