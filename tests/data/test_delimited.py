"""TSV and CSV: every byte that was there is there again, with fields behind it; what cannot be read is one sentence."""

from __future__ import annotations

import csv
import io
import lzma
import re
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .models import add_surprisal, refusal

NUM_ADDED = 5


def add(content: bytes, directory: Path, name: str = "table.tsv") -> tuple[bytes, dict[str, Any]]:
    (directory / name).write_bytes(content)
    record = add_surprisal(directory / name, directory / f"out-{name}").json
    return (directory / f"out-{name}").read_bytes(), record


def test_a_table_comes_out_with_columns_behind_it(tmp_path: Path) -> None:
    found, record = add(b"n\tword\n1\tEngland,\n2\t\n3\tzebra\n", tmp_path)
    lines = found.decode().splitlines()
    assert lines[0] == "n\tword\tsurprisal_bits\tword_surprisal_bits\tlog10_frequency\tis_unknown\tnum_tokens"
    first = lines[1].split("\t")
    assert first[:2] == ["1", "England,"]
    assert float(first[2]) > float(first[3]) > 0
    assert first[5:] == ["false", "2"]
    assert lines[2:] == ["2\t\t\t\t\tfalse\t0", "3\tzebra\t\t\t\ttrue\t1"]
    assert (record["num_rows"], record["num_unknown"], record["num_empty"]) == (3, 1, 2)


@pytest.mark.parametrize(
    "content",
    [
        b"word\n",
        b"word",
        b"\xef\xbb\xbfword\tn\r\na\t1\r\n\r\nb\t2\r\n\r\n",
        b"word\na\n\nb\n",
        b'word\tn\n"If\t1\na"\t2\n',
        "word\tn\nnaïve\t✓\n\tb\n".encode(),
        b"word\ta b\n x \t \n",
    ],
)
def test_bytes_stay_as_they_are(content: bytes, tmp_path: Path) -> None:
    found, _ = add(content, tmp_path)
    rest = []
    for line in found.split(b"\n"):
        end = b"\r" if line.endswith(b"\r") else b""
        fields = line.removesuffix(b"\r").split(b"\t")
        rest.append(b"\t".join(fields[:-NUM_ADDED] if len(fields) > NUM_ADDED else fields) + end)
    assert b"\n".join(rest) == content


# What a table may hold: empty cells, quotes, separators and line ends in quotes, letters of any script, long words.
CELLS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.sampled_from(
        ["", '"', '""', "a\tb", "a,b", "a\nb", "a\r\nb", "England,", "x" * 10_000, "naïve", "</s>", "<unk>"]
    ),
)


@settings(max_examples=40)
@given(st.lists(st.tuples(CELLS, CELLS), max_size=30), st.sampled_from(["csv", "tsv"]))
def test_any_table_keeps_its_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], form: str
) -> None:
    written = io.StringIO(newline="")
    writer = csv.writer(written, delimiter="," if form == "csv" else "\t", lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerows([("word", "other"), *rows])
    content = written.getvalue().encode()
    found, record = add(content, tmp_path_factory.mktemp("any"), f"table.{form}")
    again = list(csv.reader(io.StringIO(found.decode(), newline=""), delimiter="," if form == "csv" else "\t"))
    assert [tuple(row[:2]) for row in again] == [("word", "other"), *rows]
    assert {len(row) for row in again} == {2 + NUM_ADDED}
    assert record["num_rows"] == len(rows)


@given(st.binary(max_size=60), st.sampled_from(["csv", "tsv"]))
def test_any_bytes_are_a_table_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, form: str
) -> None:
    content = b'word,"n"\n'.replace(b",", b"," if form == "csv" else b"\t") + content
    directory = tmp_path_factory.mktemp("any")
    path, out = directory / f"table.{form}", directory / f"out.{form}"
    path.write_bytes(content)
    outcome = add_surprisal(path, out)
    if outcome.status:
        assert (outcome.status, outcome.stderr.count("\n"), outcome.stderr[-2:]) == (2, 1, ".\n")
    else:
        assert out.read_bytes().count(b"\n") == content.count(b"\n")


@pytest.mark.parametrize(
    ("content", "name", "told"),
    [
        (b"", "t.tsv", "has no column 'word': its columns are none"),
        (b"a\tb\n", "t.tsv", "has no column 'word': its columns are 'a', 'b'"),
        (b"word\tword\n", "t.tsv", "has 2 columns 'word'"),
        (b"word\tn\na\t1\nb\n", "t.tsv", "row 2 has 1 field, but the header has 2"),
        (b"word\tn\na\xff\t1\n", "t.tsv", r"line 2 is not UTF-8 \(byte 0xff\)"),
        (b'word\tn\n"""If"\t1\n', "t.tsv", "row 1 has the word .* put the header in quotes, too, if"),
        (b'word,n\na,1\n"b,2\n', "t.csv", "row 2 cannot be read .unexpected end of data.: close every quote"),
        (b'word,n\n"b"c,2\n', "t.csv", "row 1 cannot be read .',' expected after"),
        (b"word\tnum_tokens\n", "t.tsv", "already has a column 'num_tokens': .* with --prefix"),
        (b"word\n", "t.odd", "does not tell its format"),
    ],
)
def test_what_is_refused(content: bytes, name: str, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert re.search(told, refusal(tmp_path / name, tmp_path / f"out-{name}"))
    assert not (tmp_path / f"out-{name}").exists()


def test_packed_tables(tmp_path: Path) -> None:
    plain, _ = add(b"word\na\n", tmp_path)
    packed, _ = add(lzma.compress(b"word\na\n"), tmp_path, "table.tsv.xz")
    assert lzma.decompress(packed) == plain
    (tmp_path / "link.tsv.xz").symlink_to(tmp_path / "elsewhere")
    add_surprisal(tmp_path / "table.tsv", tmp_path / "link.tsv.xz")
    assert lzma.decompress((tmp_path / "elsewhere").read_bytes()) == plain
    for ending in (".gz", ".bz2", ".zst"):
        out = tmp_path / f"out.tsv{ending}"
        add_surprisal(tmp_path / "table.tsv", out)
        with pyarrow.input_stream(out, compression="detect") as file:
            assert file.read() == plain
    told = refusal(tmp_path / "table.tsv", tmp_path / "out.tsv.zip")
    assert "does not tell its format: give a name that ends in .tsv, " in told
