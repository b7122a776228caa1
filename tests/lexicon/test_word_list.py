"""Lists of words: what may stand in them, and one sentence for what may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bnce import Normaliser, UserError
from bnce.lexicon.word_list import NewWord, read_new_words, read_weighted_words, read_words

LOWER = Normaliser()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "list.tsv"


def test_words_counts_and_neighbours(path: Path) -> None:
    path.write_text("xenon\t12\targon, neon\n\nété\nfoo\t\tbar\r\nbaz\t7\n", encoding="utf-8")
    assert read_new_words(str(path), LOWER) == [
        NewWord("xenon", 12, ("argon", "neon")),
        NewWord("été"),
        NewWord("foo", None, ("bar",)),
        NewWord("baz", 7),
    ]
    path.write_text("xenon\t2.5\nété\n", encoding="utf-8")
    assert read_weighted_words(str(path), LOWER) == {"xenon": 2.5, "été": 1.0}
    path.write_text("Any\nword\n", encoding="utf-8")
    assert read_words(str(path)) == ["Any", "word"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("ok\nnew york\n", "a blank or NUL inside 'new york' on line 2"),
        ("\t3\n", "no word on line 1"),
        ("a\t1\tb\tc\n", "4 fields on line 1"),
        ("a\nb\na\n", "'a' both on line 1 and on line 3"),
        ("</s>\n", "has </s> on line 1"),
        ("<unk>\n", "has <unk> on line 1"),
        ("a\tmany\n", "the count 'many' on line 1"),
        ("a\t0\n", "the count '0' on line 1"),
        ("a\t-3\n", "the count '-3' on line 1"),
        (f"a\t{'9' * 5000}\n", f"the count '{'9' * 40}' on line 1"),
        ("Paris\n", "'Paris' on line 1, but this run reads it as 'paris'"),
        ("ok\nParis\nRome\nnew-york\n", "'Paris' on line 2 (and 2 more like it)"),
        ("new-york\n", "reads it as 'new - york'"),
        ("", "has no words"),
    ],
)
def test_refusals(path: Path, content: str, told: str) -> None:
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as error:
        read_new_words(str(path), LOWER)
    assert told in str(error.value)


def test_a_cased_run_takes_capitals(path: Path) -> None:
    path.write_text("Paris\nnew-york\n", encoding="utf-8")
    cased = Normaliser(lowercase=False, tokens="whitespace")
    assert [new.word for new in read_new_words(str(path), cased)] == ["Paris", "new-york"]


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf", "x"])
def test_weights_that_are_none(path: Path, weight: str) -> None:
    path.write_text(f"a\t{weight}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"the weight '.*' on line 1: give a number above 0"):
        read_weighted_words(str(path), LOWER)
