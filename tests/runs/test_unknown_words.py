"""Shares of `<unk>`: they sum to one, survive their file, and refuse what is none."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bnce import UserError
from bnce.runs.identity import UNKNOWN_WORDS_FILE
from bnce.runs.unknown_words import UnknownWords


def share(words: UnknownWords, word: str) -> float:
    log_share = words.log_share(word)
    assert log_share is not None
    return math.exp(log_share)


def test_shares_go_by_weight_and_sum_to_one() -> None:
    words = UnknownWords({"xenon": 3.0, "été": 1.0})
    assert share(words, "xenon") == pytest.approx(0.75)
    assert share(words, "été") == pytest.approx(0.25)
    assert words.log_share("other") is None
    assert words.log_share("<unk>") == 0.0
    words = UnknownWords({"xenon": 3.0, "été": 1.0}, rest=0.2, num_rest=50)
    assert share(words, "xenon") == pytest.approx(0.6)
    assert share(words, "other") == pytest.approx(0.2 / 50)
    assert share(words, "xenon") + share(words, "été") + 50 * share(words, "other") == pytest.approx(1.0)
    assert share(UnknownWords({"a": 1, "b": 1}, rest=0.5), "c") == pytest.approx(0.25)
    assert share(UnknownWords({}, rest=0.5, num_rest=10), "c") == pytest.approx(0.05)


def test_weights_of_any_size() -> None:
    words = UnknownWords({"huge": 1e300, "tiny": 1e-300})
    assert words.log_share("tiny") == pytest.approx(-600 * math.log(10))
    assert words.log_share("huge") == pytest.approx(0.0)
    assert UnknownWords({"a": 1.7e308, "b": 1.7e308}).log_share("a") == pytest.approx(-math.log(2))


def test_the_file_gives_back_the_same(tmp_path: Path) -> None:
    assert UnknownWords.of_run(tmp_path) is None
    words = UnknownWords({"#": 0.1, '"': 1 / 3, "日本": 7.0}, rest=0.3, num_rest=12)
    words.write(tmp_path / UNKNOWN_WORDS_FILE)
    again = UnknownWords.of_run(tmp_path)
    assert again is not None
    assert (again.weights, again.rest, again.num_rest) == (words.weights, 0.3, 12)
    assert all(again.log_share(word) == words.log_share(word) for word in (*words.weights, "x"))


@pytest.mark.parametrize(
    "content", ["", "x\t1\n", "<unk>\t0.1\n", "<unk>\t0\t1\nx\n", "<unk>\t0\t1\nx\t-1\n", "<unk>\t2\t1\nx\t1\n",
                "<unk>\t0\t1\nx\t1\nx\t2\n"]
)  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / UNKNOWN_WORDS_FILE).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="is not a list of unknown words"):
        UnknownWords.of_run(tmp_path)


def test_what_is_no_share_is_refused() -> None:
    for rest in (-0.1, 1.0, math.nan):
        with pytest.raises(UserError, match="it must be at least 0 and below 1"):
            UnknownWords({"a": 1.0}, rest=rest)
    with pytest.raises(UserError, match="give 1 or more"):
        UnknownWords({"a": 1.0}, rest=0.1, num_rest=0)
    for weight in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UserError, match="The weight of 'a' is"):
            UnknownWords({"a": weight})
