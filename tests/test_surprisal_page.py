"""docs/surprisal.md: its commands and code run as they stand, one after the other, on the text that they make."""

from __future__ import annotations

import contextlib
import csv
import math
import re
from pathlib import Path
from typing import Any

import pytest
from pages import blocks, read_page, run_commands_here

PAGE = read_page("surprisal.md")


def read(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_the_commands_run(tmp_path: Path) -> None:
    pytest.importorskip("kenlm")
    done = run_commands_here(PAGE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Probabilities are with the constant Z" in done.stderr
    assert "Probabilities are with the softmax" in done.stderr
    words, both, spelt = (read(tmp_path / f"{name}.tsv") for name in ("words", "both", "spelt"))
    assert [{name: row[name] for name in words[0]} for row in both] == words
    columns = re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    assert list(both[0])[3:9] == columns
    unknown = [row for row in both if row["is_unknown"] == "true"]
    assert {row["word"].strip(".,") for row in unknown} >= {"lighthouse"}
    assert {row["surprisal_bits"] for row in unknown} == {""}
    assert all(row["surprisal_bits"] for row in spelt)
    assert {row["trigram_log10_frequency"] for row in both} == {""}
    (code,) = blocks(PAGE, "python")
    names: dict[str, Any] = {}
    with contextlib.chdir(tmp_path):
        exec(code, names)
    assert math.isfinite(names["found"]["surprisal_bits"][0])  # with the constant Z it may be below 0
