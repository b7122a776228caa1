"""What rescoring changed: word by word, and on a page that is whole, escaped and readable without colours."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from bnce.rescoring.changes import Step, align, find_changes, ranked
from bnce.rescoring.changes_page import NUM_WORDS, changes_page
from bnce.rescoring.comparison import compare
from bnce.rescoring.nbest import NBest, Utterance
from bnce.rescoring.rescore import Judge
from tests.report.test_page import Page

pytest.importorskip("jiwer")

LISTS = NBest(
    [
        Utterance("better", ["meet the cat uh", "meat the cat"]),
        Utterance("worse", ["we go home", "now we go homes"]),
        Utterance("same", ["a b", "a b"]),
        Utterance("kept", ["x", "y"]),
        Utterance("<script>", ["&", "<b>bold</b>"]),
        Utterance("silent", ["noise", ""]),
    ]
)
REFERENCES = ["meat the cat", "we go home", "a b", "x", "<b>bold</b>", ""]
PLACES = [1, 1, 1, 0, 1, 1]


def test_alignment() -> None:
    assert align("a b c", "a x c d") == [Step("a", "a"), Step("b", "x"), Step("c", "c"), Step(None, "d")]
    assert align("a b", "") == [Step("a", None), Step("b", None)]
    assert align("", "a") == [Step(None, "a")]
    assert align("", "") == []


def test_changes_by_word() -> None:
    changes = find_changes(LISTS, REFERENCES, PLACES)
    assert [one.name for one in changes.utterances] == ["better", "worse", "<script>", "silent"]
    assert changes.corrected == {("meat", "meet"): 1, ("<b>bold</b>", "&"): 1}
    assert changes.broken == {("home", "homes"): 1}
    assert changes.insertions_removed == {"uh": 1, "noise": 1}
    assert changes.insertions_added == {"now": 1}
    assert [one.name for one in changes.best(1)] == ["better"]
    assert [one.name for one in changes.worst(9)] == ["worse"]
    found = changes.to_dict()
    assert (found["num_changed"], found["num_better"], found["num_worse"]) == (4, 3, 1)
    assert found["broken"] == [{"word": "home", "heard": "homes", "count": 1}]
    assert found["insertions_added"] == [{"word": "now", "count": 1}]
    assert str(changes).startswith(
        "Another hypothesis was chosen for 4 utterances: 3 with fewer errors, 1 with more. Words corrected: 2;"
    )


def test_words_are_ranked_by_count_and_spelling() -> None:
    counts = Counter({("b", "x"): 1, ("b", None): 1, ("a's", "x"): 1, ("a", "x"): 1, ("z", "z"): 2})
    assert [pair for pair, _ in ranked(counts)] == [("z", "z"), ("a", "x"), ("a's", "x"), ("b", None), ("b", "x")]
    assert ranked(Counter({"ab": 1, "a": 1, "c": 3})) == [("c", 3), ("a", 1), ("ab", 1)]


def test_errors_add_up() -> None:
    """Corrected and broken words and insertions make up the difference in errors."""
    judge = Judge(LISTS, REFERENCES)
    chosen_U = judge.first_U + np.array(PLACES)
    found = find_changes(LISTS, REFERENCES, PLACES).count()
    fewer = found["num_corrected"] - found["num_broken"]
    fewer += found["num_insertions_removed"] - found["num_insertions_added"]
    assert judge.judge(judge.first_U).total - judge.judge(chosen_U).total == fewer


def page() -> str:
    judge = Judge(LISTS, REFERENCES)
    compared = compare(judge, judge.first_U + np.array(PLACES))
    return changes_page("Rescored <run>", compared, find_changes(LISTS, REFERENCES, PLACES), ["'a&b' was read"])


def test_the_page_is_whole_and_escaped() -> None:
    html = page()
    parsed = Page(html)
    assert parsed.open == []
    for outside in ("http", "src=", "<script", "<link", "@import", "url("):
        assert outside not in html
    for word in ("Rescored &lt;run&gt;", "&lt;script&gt;", "&lt;b&gt;bold&lt;/b&gt;", "a&amp;b"):
        assert word in html
    assert '<html lang="en">' in html
    # Marks say in words what is wrong, so that colours are not needed.
    for mark in ("<mark>meet → meat</mark>", "<mark>+ uh</mark>", "<mark>homes → home</mark>", "<mark>+ now</mark>"):
        assert mark in html
    assert "better: 2 errors before, 0 after" in html
    assert html == page()


def test_missing_words_and_long_tables() -> None:
    names = [f"w{number}" for number in range(NUM_WORDS + 5)]
    lists = NBest([Utterance("u", [" ".join(names), ""])])
    changes = find_changes(lists, [" ".join(names)], [1])
    judge = Judge(lists, [" ".join(names)])
    html = changes_page("t", compare(judge, np.array([1])), changes, [])
    assert f"Broken words, {NUM_WORDS} of {NUM_WORDS + 5}" in html
    assert "<mark>− w0</mark>" in html
    assert "No utterance has fewer errors than before." in html
    assert html.count("(missing)") == NUM_WORDS
