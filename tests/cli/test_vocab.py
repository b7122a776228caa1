"""`bnce vocab`: a new run for every command that uses one, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command import Command, Refused

from bnce import load


@pytest.fixture
def new_words(tmp_path: Path) -> Path:
    path = tmp_path / "add.tsv"
    path.write_text("zaba\t4\nba\nzobo\n", encoding="utf-8")
    return path


def test_the_new_run_is_used_as_any(
    bnce: Command, refused: Refused, trained: Path, texts: Path, place: Path, new_words: Path
) -> None:
    files = {path.name: path.read_bytes() for path in trained.iterdir() if path.is_file()}
    out = place / "new"
    record = bnce("vocab", trained, "--out", out, "--add", new_words, "--json").json
    assert [added["word"] for added in record["added"]] == ["zaba", "zobo"]
    assert record["already_known"] == ["ba"]
    assert (record["num_words_before"], record["num_words_after"]) == (30, 32)
    assert [path.name for path in place.iterdir()] == ["new"]
    assert {path.name: path.read_bytes() for path in trained.iterdir() if path.is_file()} == files
    assert load(out).vocabulary.words == [*load(trained).vocabulary.words, "zaba", "zobo"]

    before, info = (bnce("info", run, "--json").json for run in (trained, out))
    assert info["vocab_size"] == info["summary"]["vocab_size"] == 32
    assert info["num_parameters"] == info["summary"]["num_parameters"]
    added = info["num_parameters"] - before["num_parameters"]
    assert info["summary"]["num_table_parameters"] - before["summary"]["num_table_parameters"] == added > 0
    assert bnce("info", out, "--check").status == 0
    assert bnce("generate", out, "--prompt", "zaba", "-n", 1).stdout.startswith("zaba")
    assert "prepare it with --vocab" in refused("evaluate", out)
    assert "run 'bnce evaluate --save' on it" in refused("compare", out)
    assert bnce("evaluate", out, "--text", texts / "test.txt", "--save").status == 0
    (row,) = bnce("compare", out, "--json").json["rows"]
    assert row["vocab_size"] == 32
    assert "has no state to resume from" in refused("train", "--out", out, "--resume")
    again = bnce("vocab", out, "--out", place / "again", "--add", new_words, "--json").json
    assert (again["added"], again["already_known"]) == ([], ["zaba", "ba", "zobo"])


def test_a_spelling_model_leaves_out_the_new_words(bnce: Command, trained: Path, place: Path, new_words: Path) -> None:
    """A word that is added is no longer spelt: the others have its share of what is spelt."""
    record = bnce("vocab", trained, "--out", place / "new", "--add", new_words, "--json").json
    assert record["has_spelling"] is True
    before, after = (load(run).spelling for run in (trained, place / "new"))
    assert after.log_outside == before.leaving_out(load(place / "new").vocabulary.words).log_outside
    assert after.log_outside != before.log_outside
    np.testing.assert_array_equal(after.ngram_N, before.ngram_N)


def test_says_what_was_done(bnce: Command, trained: Path, place: Path, new_words: Path) -> None:
    outcome = bnce("vocab", trained, "--out", place / "new", "--add", new_words)
    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout.splitlines() == [
        f"{place / 'new'}: 30 words became 32",
        "  2 added: zaba zobo",
        "  1 already known, not changed: ba",
        "  'bnce score --spell' spells the words that are outside the new vocabulary",
        "  the new run can be used and evaluated, but not trained further",
    ]


def test_refusals(refused: Refused, trained: Path, place: Path, new_words: Path) -> None:
    out = place / "new"
    assert "--add" in refused("vocab", trained, "--out", out)
    assert "already exists" in refused("vocab", trained, "--out", trained, "--add", new_words)
    assert "missing.txt" in refused("vocab", trained, "--out", out, "--add", place / "missing.txt")
    assert "is not a run directory" in refused("vocab", place, "--out", out, "--add", new_words)
    assert list(place.iterdir()) == []
