"""`bnce surprisal`: a table in, the same table out, what it says of it, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from command import Command, Refused, run_command

TABLE = "story\tword\tms\n1\tBa\t300\n1\tbe.\t310\n1\txyzzy\t\n2\tbi\t290\n2\tbo\t280\n"
EXACT = ("--mode", "normalised")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "words.tsv"
    path.write_text(TABLE, encoding="utf-8")
    return path


def read(path: Path) -> list[dict[str, str]]:
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]


def test_the_sum_is_what_score_prints(bnce: Command, trained: Path, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.tsv"
    record = bnce("surprisal", trained, table, "--text", "story", "--spell", *EXACT, "--out", out, "--json").json
    text = tmp_path / "text.txt"
    text.write_text("Ba be. xyzzy\n\nbi bo\n", encoding="utf-8")
    options = ["--split", "--carry", "documents", "--spell", "--mode", "normalised", "--json"]
    scored = bnce("score", trained, text, *options).json
    bits = -scored["log10_prob"] / math.log10(2)
    assert record["surprisal"] + record["end"] == pytest.approx(bits, rel=1e-6)
    assert sum(float(row["surprisal_bits"]) for row in read(out)) == pytest.approx(record["surprisal"], rel=1e-6)
    assert (record["num_rows"], record["num_texts"], record["num_sentences"]) == (5, 2, 3)
    assert [row["is_unknown"] for row in read(out)] == ["false", "false", "true", "false", "false"]


def test_what_is_said_of_it(bnce: Command, trained: Path, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.tsv"
    told = bnce("surprisal", trained, table, "--text", "story", *EXACT, "--out", out).stderr
    assert "Rows: 5; texts: 2; sentences: 3; rows with unknown words: 1; rows without a surprisal: 1." in told
    assert "Sum of the surprisals of the 4 rows that have one: " in told
    assert "Probabilities are with the softmax; context: the words before it in the same text." in told
    told = bnce("surprisal", trained, table, "--mode", "unnormalised", "--out", out).stderr
    assert "with the constant Z (unnormalised" in told
    assert [row["word"] for row in read(out)] == ["Ba", "be.", "xyzzy", "bi", "bo"]


def test_rows_without_a_blank_before_them(bnce: Command, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.csv").write_text("word,joined\nb,\nA,yes\n.,1\nbe,no\n", encoding="utf-8")
    out = tmp_path / "out.csv"
    bnce("surprisal", trained, tmp_path / "cut.csv", "--glued", "joined", "--out", out)
    rows = [line.split(",") for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row[-1] for row in rows] == ["num_tokens", "1", "0", "1", "1"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--word", "words"], "has no column 'words'"),
        (["--mode", "exact"], "Unknown mode 'exact'"),
        (["--out", "o.csv"], "give an output of the same format"),
        (["--out", "o.xlsx"], "does not tell its format: give a name that ends in .tsv"),
        (["--out", "-", "--json"], "--out - and --json both write to standard output: leave one of them out."),
    ],
)
def test_what_is_refused(
    refused: Refused, trained: Path, table: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], told: str
) -> None:
    monkeypatch.chdir(table.parent)
    assert told in refused("surprisal", trained, table, *options, *([] if "--out" in options else ["--out", "o.tsv"]))
    assert [path.name for path in table.parent.iterdir()] == [table.name]


def test_a_parquet_table_cannot_be_printed(refused: Refused, trained: Path) -> None:
    told = refused("surprisal", trained, "words.parquet", "--out", "-")
    assert "'words.parquet' is a parquet table, which cannot be printed: give --out FILE.parquet." in told


def test_a_table_on_standard_output(
    capfd: pytest.CaptureFixture[str], trained: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("Ba be.\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for source in (table, tmp_path / "text.txt"):
        printed = []
        for out in ("out.tsv", "-"):
            run_command("surprisal", trained, source, "--out", out)
            printed.append(capfd.readouterr())
        assert printed[0].out == ""
        assert printed[1].out == (tmp_path / "out.tsv").read_text(encoding="utf-8")
        assert printed[1].err == printed[0].err
    assert not (tmp_path / "-").exists()


def rows(table: Path, header: str, lines: list[str]) -> Path:
    table.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return table


def test_a_column_without_words_is_refused(bnce: Command, refused: Refused, trained: Path, tmp_path: Path) -> None:
    numbers = rows(tmp_path / "t.tsv", "word\trt", [f"ba\t{300 + number}.5" for number in range(200)])
    told = refused("surprisal", trained, numbers, "--word", "rt", "--out", tmp_path / "o.tsv")
    assert "The model knows no word of the column 'rt' of " in told
    assert "all 200 rows are unknown. Name the column that has the words with --word." in told
    assert not (tmp_path / "o.tsv").exists()
    some = rows(tmp_path / "s.tsv", "word", ["ba", "be", "zebra", "xyzzy"])
    told = bnce("surprisal", trained, some, "--out", tmp_path / "o.tsv").stderr
    assert told.startswith("Warning: The model does not know 2 of 4 rows (50%): use a run of such text")


def test_a_column_that_may_name_the_text(bnce: Command, trained: Path, tmp_path: Path) -> None:
    lines = [f"{story}\t{number}\tba" for story in (1, 2, 3) for number in range(60)]
    table = rows(tmp_path / "t.tsv", "story\tplace\tword", lines)
    told = bnce("surprisal", trained, table, "--out", tmp_path / "o.tsv").stderr
    assert "Warning: All 180 rows are read as one text, but the column 'story' has only 3 different values" in told
    assert "give --text story: then no text is context of another." in told
    assert "Warning" not in bnce("surprisal", trained, table, "--text", "story", "--out", tmp_path / "o.tsv").stderr


def test_cells_of_a_tokeniser_are_noticed(bnce: Command, trained: Path, tmp_path: Path) -> None:
    table = rows(tmp_path / "t.tsv", "word\tglued", ["ba\t0", "do\t0", "n't\t1", "-LRB-\t0", *["be\t0"] * 20])
    told = bnce("surprisal", trained, table, "--out", tmp_path / "o.tsv").stderr
    assert "looks tokenised: 2 of the 24 checked words are signs such as 'n't', '-LRB-'" in told
    told = bnce("surprisal", trained, table, "--glued", "glued", "--out", tmp_path / "o.tsv").stderr
    assert "looks tokenised: 1 of the 23 checked words are signs such as '-LRB-'" in told
