"""Of plain text a table is made: one row per word, a blank line between texts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from .models import add_surprisal, make_model, refusal

MODEL = make_model()
TEXT = 'A b, "c".\n d England\n\n\nb a. "d\n'
WORDS = ["A", "b,", '"c".', "d", "England", "b", "a.", '"d']


def test_one_row_per_word(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    record = add_surprisal(tmp_path / "text.txt", tmp_path / "out.tsv", "--spell", "--mode", "normalised").json
    assert (record["num_rows"], record["num_texts"], record["num_sentences"]) == (8, 2, 4)
    header, *rows = (line.split("\t") for line in (tmp_path / "out.tsv").read_text(encoding="utf-8").splitlines())
    assert header[:3] == ["text", "line", "word"]
    assert [row[0] for row in rows] == ["1"] * 5 + ["2"] * 3
    assert [row[1] for row in rows] == ["1", "1", "1", "2", "2", "5", "5", "5"]
    assert [row[2] for row in rows] == WORDS
    total = 0.0
    for text in TEXT.split("\n\n\n"):
        sentences = [words for line in text.split("\n") for words in MODEL.normaliser(line)]
        scored = MODEL.stream(sentences, mode="normalised", carry=True, spell=True)
        total -= sum(one.log_prob for one in scored) / math.log(2)
    assert record["surprisal"] + record["end"] == pytest.approx(total, rel=1e-6)
    assert "give an output that ends in .tsv" in refusal(tmp_path / "text.txt", tmp_path / "out.parquet")
