"""Of plain text a table is made: one row per word, a blank line between texts."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from .models import add_surprisal, make_model, refusal

MODEL = make_model()
TEXT = 'A b, "c".\n d England\n\n\nb a. "d\n'
WORDS = ["A", "b,", '"c".', "d", "England", "b", "a.", '"d']


@pytest.mark.parametrize("name", ["out.tsv", "out.csv", "out.parquet", "out.arrow"])
def test_one_row_per_word(name: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    record = add_surprisal(tmp_path / "text.txt", tmp_path / name, "--spell", "--mode", "normalised").json
    assert (record["num_rows"], record["num_texts"], record["num_sentences"]) == (8, 2, 4)
    if name.endswith("parquet"):
        rows = pq.read_table(tmp_path / name).to_pylist()
    elif name.endswith("arrow"):
        import pyarrow

        rows = pyarrow.ipc.open_file(str(tmp_path / name)).read_all().to_pylist()
    else:
        with open(tmp_path / name, encoding="utf-8", newline="") as file:
            quoting = csv.QUOTE_MINIMAL if name.endswith("csv") else csv.QUOTE_NONE
            rows = list(csv.DictReader(file, delimiter="," if name.endswith("csv") else "\t", quoting=quoting))
    assert [row["word"] for row in rows] == WORDS
    assert [int(row["text"]) for row in rows] == [1] * 5 + [2] * 3
    assert [int(row["line"]) for row in rows] == [1, 1, 1, 2, 2, 5, 5, 5]
    total = 0.0
    for text in TEXT.split("\n\n\n"):
        sentences = [words for line in text.split("\n") for words in MODEL.normaliser(line)]
        scored = MODEL.stream(sentences, mode="normalised", carry=True, spell=True)
        total -= sum(one.log_prob for one in scored) / math.log(2)
    assert record["surprisal"] + record["end"] == pytest.approx(total, rel=1e-6)


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    told = refusal(path, tmp_path / "out.tsv", "--text", "story")
    assert "is plain text, which has no columns" in told
    assert "give an output that ends in .tsv" in refusal(path, tmp_path / "out.txt")
