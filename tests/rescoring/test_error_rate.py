"""Word errors: what jiwer counts, and what it is not asked."""

from __future__ import annotations

import sys

import pytest

from bnce import UserError
from bnce.rescoring.error_rate import Errors, count_errors, sum_errors

pytest.importorskip("jiwer")


def test_kinds_of_errors() -> None:
    found = count_errors(
        "the cat sat down", ["the cat sat down", "the bat sat", "oh the cat sat  down", "", "The cat sat down"]
    )
    assert [(one.substitutions, one.deletions, one.insertions) for one in found] == [
        (0, 0, 0),
        (1, 1, 0),
        (0, 0, 1),
        (0, 4, 0),
        (1, 0, 0),  # as it is written
    ]
    assert all((one.num_utterances, one.num_words) == (1, 4) for one in found)


def test_nothing_was_said() -> None:
    assert count_errors("", ["", "a b"]) == [Errors(1), Errors(1, insertions=2)]
    assert Errors(1, insertions=2).wer is None
    assert str(Errors(1)).startswith("undefined (0 of 0 words")


def test_sums() -> None:
    total = sum_errors([Errors(1, 4, 1, 0, 0), Errors(1, 6, 0, 2, 1)])
    assert total == Errors(2, 10, 1, 2, 1)
    assert (total.total, total.wer) == (4, 0.4)
    assert total.to_dict()["wer"] == 0.4
    assert str(total) == "40.00% (4 of 10 words in 2 utterances: 1 substitution, 2 deletions, 1 insertion)"
    assert sum_errors([]) == Errors()


def test_the_package_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(UserError, match=r"pip install 'bnce\[train\]'"):
        count_errors("a", ["a"])
