"""Parquet and Arrow: columns of any type stay as they are, rows keep their order, and empty cells are null."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .models import add_surprisal, refusal

TABLE = pa.table(
    {
        "story": [1, 1, 1, 2, 2],
        "word": pa.array(["England,", None, "zebra", "a.", "b"]).dictionary_encode(),
        "ms": pa.array([1.5, None, 2.5, 3.0, 4.0], pa.float32()),
        "tags": [["x"], [], None, ["y", "z"], ["q"]],
    }
).replace_schema_metadata({"made by": "a test"})


def write(table: pa.Table, path: Path, rows: int = 2) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path, compression="zstd", row_group_size=rows)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table.unify_dictionaries(), max_chunksize=rows)
    return path


def read(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path)
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_a_table_comes_out_with_columns_behind_it(name: str, tmp_path: Path) -> None:
    path, out = write(TABLE, tmp_path / name), tmp_path / f"out-{name}"
    assert add_surprisal(path, out, "--text", "story").status == 0
    found = read(out)
    assert found.select(TABLE.column_names).equals(read(path))
    assert found.schema.metadata[b"made by"] == b"a test"
    assert found["is_unknown"].to_pylist() == [False, False, True, False, False]
    assert found["num_tokens"].to_pylist() == [2, 0, 1, 2, 1]
    assert [value is None for value in found["surprisal_bits"].to_pylist()] == [False, True, True, False, False]
    lines = [f"{story}\t{word or ''}" for story, word in zip(*TABLE.select([0, 1]).to_pydict().values(), strict=True)]
    (tmp_path / "t.tsv").write_text("\n".join(["story\tword", *lines]), encoding="utf-8")
    add_surprisal(tmp_path / "t.tsv", tmp_path / "o.tsv", "--text", "story")
    same = [line.split("\t")[2] for line in (tmp_path / "o.tsv").read_text().splitlines()[1:]]
    expected = [float(value or "nan") for value in same]
    np.testing.assert_allclose(found["surprisal_bits"].to_numpy(), expected, rtol=1e-6)
    if name == "t.parquet":
        assert pq.ParquetFile(out).metadata.row_group(0).column(0).compression == "ZSTD"


@settings(max_examples=40)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=8) | st.none() | st.just("x" * 10_000), max_size=30))
def test_any_words_keep_their_rows(tmp_path_factory: pytest.TempPathFactory, words: list[str | None]) -> None:
    directory = tmp_path_factory.mktemp("any")
    path = write(pa.table({"word": pa.array(words, pa.string())}), directory / "t.parquet")
    add_surprisal(path, directory / "o.parquet")
    assert read(directory / "o.parquet")["word"].to_pylist() == words


def test_missing_values_are_one_text(tmp_path: Path) -> None:
    table = pa.table({"word": ["a", "b"], "text": [math.nan, math.nan]})
    path = write(table, tmp_path / "t.parquet")
    assert add_surprisal(path, tmp_path / "o.parquet", "--text", "text").json["num_texts"] == 1


def test_what_is_refused(tmp_path: Path) -> None:
    path, out = write(TABLE, tmp_path / "t.parquet"), tmp_path / "o.parquet"
    for options, told in (
        (("--word", "ms"), "row 1 has 1.5 as its word: it must be text"),
        (("--word", "wort"), "has no column 'wort'"),
    ):
        assert told in refusal(path, out, *options)
    for name in ("t.parquet", "t.arrow"):
        (tmp_path / name).write_bytes(b"no table")
        told = refusal(tmp_path / name, tmp_path / f"o-{name}")
        assert re.search(r"is damaged or not an? (Parquet|Arrow) file", told)
    assert not out.exists()
