"""`bnce vocab`: a new run for every command that uses one, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import Command

from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import load_model
from bnce.spelling.model import SpellingModel

Refused = Callable[..., str]


@pytest.fixture
def new_words(tmp_path: Path) -> Path:
    path = tmp_path / "add.tsv"
    path.write_text("zaba\t4\nba\nzobo\t\tbe,bi\n", encoding="utf-8")
    return path


def test_the_new_run_is_used_as_any(
    bnce: Command, refused: Refused, trained: Path, texts: Path, place: Path, new_words: Path
) -> None:
    drop = place.parent / "drop.txt"
    drop.write_text("bo\nxyzzy\n", encoding="utf-8")
    out = place / "new"
    record = bnce("vocab", trained, "--out", out, "--add", new_words, "--drop", drop, "--json").json
    assert [added["word"] for added in record["added"]] == ["zaba", "zobo"]
    assert [near["word"] for near in record["added"][1]["neighbours"]] == ["be", "bi"]
    assert (record["already_known"], record["dropped"], record["not_known"]) == (["ba"], ["bo"], ["xyzzy"])
    assert (record["num_words_before"], record["num_words_after"]) == (30, 31)
    assert [path.name for path in place.iterdir()] == ["new"]
    words = RunDirectory.open(out).vocabulary
    assert "bo" not in words
    assert words.words[-2:] == ["zaba", "zobo"]

    info = bnce("info", out, "--json").json
    assert info["vocab_size"] == info["summary"]["vocab_size"] == 31
    assert (
        info["num_parameters"] == info["summary"]["num_parameters"] == load_model(RunDirectory.open(out)).num_parameters
    )
    assert bnce("generate", out, "--prompt", "zaba", "-n", 1).stdout.startswith("zaba")
    assert "prepare it with --vocab" in refused("evaluate", out)
    assert "run 'bnce evaluate --save' on it" in refused("compare", out)
    assert bnce("evaluate", out, "--text", texts / "test.txt", "--save").status == 0
    (row,) = bnce("compare", out, "--json").json["rows"]
    assert row["vocab_size"] == 31
    assert "were changed by 'bnce vocab', so it has no state to resume from" in refused(
        "train", "--out", out, "--resume"
    )


def test_a_spelling_model_leaves_out_the_new_words(
    bnce: Command, refused: Refused, trained: Path, place: Path, new_words: Path
) -> None:
    """A word that is added is no longer spelt, and one that is dropped is: what is left out changes with the words."""
    drop = place.parent / "drop.txt"
    drop.write_text("bo\n", encoding="utf-8")
    bnce("vocab", trained, "--out", place / "new", "--add", new_words, "--drop", drop)
    before, after = (SpellingModel.of_run(run) for run in (trained, place / "new"))
    assert before is not None
    assert after is not None
    assert after.log_outside == before.leaving_out(RunDirectory.open(place / "new").vocabulary.words).log_outside
    assert after.log_outside != before.log_outside
    np.testing.assert_array_equal(after.ngram_N, before.ngram_N)
    assert bnce("info", place / "new", "--check").status == 0
    again = bnce("vocab", place / "new", "--out", place / "again", "--drop", drop, "--json").json
    assert again["has_spelling"] is True
    empty = place.parent / "empty"
    empty.write_text("\n", encoding="utf-8")
    assert "empty' has no words" in refused("vocab", trained, "--out", place / "none", "--spelling", empty)


def test_says_what_was_done(bnce: Command, trained: Path, place: Path, new_words: Path) -> None:
    outcome = bnce("vocab", trained, "--out", place / "new", "--add", new_words, "--unk-list", new_words.with_name("l"))
    assert outcome.status == 2
    new_words.with_name("l").write_text("xenon\t3\nargon\n", encoding="utf-8")
    options = ["--add", new_words, "--unk-list", new_words.with_name("l"), "--unk-rest", 0.25]
    outcome = bnce("vocab", trained, "--out", place / "new", *options)
    assert outcome.status == 0, outcome.stderr
    assert "30 words became 32" in outcome.stdout
    assert "2 added: zaba zobo" in outcome.stdout
    assert "1 already known, not changed: ba" in outcome.stdout
    assert "zobo (count " in outcome.stdout
    assert ") starts from be 0.70, bi 0.70" in outcome.stdout
    assert "<unk> is shared by 2 listed words, 25.00% of it for other words" in outcome.stdout
    assert "'bnce score --spell' spells the words that are outside the new vocabulary" in outcome.stdout
    assert "not trained further" in outcome.stdout


def test_refusals(refused: Refused, trained: Path, place: Path, new_words: Path) -> None:
    out = place / "new"
    assert "nothing to change: give --add, --drop, --unk-list or --spelling" in refused("vocab", trained, "--out", out)
    assert "work only with --unk-list" in refused("vocab", trained, "--out", out, "--add", new_words, "--unk-rest", 0.1)
    new_words.write_text("Zaba\n", encoding="utf-8")
    assert "reads it as 'zaba': write words as the run reads them." in refused(
        "vocab", trained, "--out", out, "--add", new_words
    )
    new_words.write_text("zaba\n", encoding="utf-8")
    assert "already exists" in refused("vocab", trained, "--out", trained, "--add", new_words)
    assert "missing.txt" in refused("vocab", trained, "--out", out, "--drop", place / "missing.txt")
    assert "is not a run directory" in refused("vocab", place, "--out", out, "--add", new_words)
    assert "it must be at least 0 and below 1" in refused(
        "vocab", trained, "--out", out, "--unk-list", new_words, "--unk-rest", 1
    )
    assert list(place.iterdir()) == []
