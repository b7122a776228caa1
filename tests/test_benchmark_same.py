"""The record of behaviour: this tree equals itself to the bit, and a number that moved is seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import same

ROOT = Path(__file__).parents[1]


def test_a_tree_equals_itself_and_what_moved_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [
        *same.chosen(same.CASES, ["prepare plain", "train relu-lstm", "evaluate valid"]),
        same.Case("told", ("evaluate runs/relu-lstm --json",)),
        same.Case("moved", ("score runs/relu-lstm lines.txt --mode normalised",)),
        same.Case("moved on purpose", ("score runs/relu-lstm lines.txt --mode normalised",)),
        same.Case("taken out", ("generate runs/relu-lstm",)),
        same.Case("refused", ("generate runs/nowhere",)),
    ]
    monkeypatch.setattr(same, "SAID_NOW", {"--mode normalised": "--mode unnormalised"})
    monkeypatch.setattr(same, "CHANGED", {"moved on purpose": "because"})
    monkeypatch.setattr(same, "GONE", {"taken out": "nobody needs it"})
    results = same.check(cases, ROOT, ROOT, tmp_path)
    assert [result.verdict for result in results] == ["ok"] * 4 + ["differs", "changed", "gone", "failed"]
    assert all(len(result.facts["then"]) > 20 for result in results[:4])
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].startswith("moved ")
    assert "DIFFERS out: [0] 'Total: " in lines[4]
    assert "changed on purpose: because" in lines[5]
    assert "gone on purpose: nobody needs it" in lines[6]


@pytest.mark.parametrize(
    ("then", "now", "later", "word"),
    [
        ({"ppl": 5.0}, {"ppl": math.nextafter(5.0, 6)}, None, "ppl: 5.0 → 5.000000000000001"),
        ({"ppl": 5.0}, {"ppl": math.nextafter(5.0, 6)}, {"p*": same.Within(1e-6)}, None),
        ({"ppl": 5.0}, {"ppl": 5.1}, {"p*": same.Within(1e-6)}, "ppl: 5.0 → 5.1"),
        ({"words": 5}, {"words": 6}, {"*": same.Within(absolute=10)}, "words: 5 → 6"),
        ({"words": 5}, {"words": 5.0}, {"*": same.Within(1e-6)}, "words: 5 → 5.0"),
        ({"out": ["a", "b -1.25 c"]}, {"out": ["a", "b -1.26 c"]}, None, "out: [1] 'b -1.25 c' → 'b -1.26 c'"),
        ({"out": ["a", "b -1.25 c"]}, {"out": ["a", "b -1.26 c"]}, {"*": same.Within(absolute=0.1)}, None),
        ({"out": ["b 2 -1.25 c"]}, {"out": ["b 3 -1.25 c"]}, {"*": same.Within(absolute=10)}, "out: [0] 'b 2"),
        ({"out": ["a"]}, {"out": ["a", "b"]}, None, "out: 1 items → 2"),
        ({"x": None}, {}, None, "x is not there any more"),
        ({}, {"x": None}, None, "x is new: None"),
        ({"w/sha256": "a"}, {"w/sha256": "b"}, {"*/sha256": same.ANYTHING}, None),
    ],
)
def test_facts_are_exact_but_for_what_a_case_allows(
    then: same.Facts, now: same.Facts, later: Mapping[str, same.Within] | None, word: str | None
) -> None:
    found = same.differences(then, now, later)
    if word is None:
        assert not found
    else:
        (sentence,) = found
        assert sentence.startswith(word)


def test_a_case_brings_the_cases_that_it_needs() -> None:
    assert [one.name for one in same.chosen(same.CASES, ["score kenlm"])] == [
        "prepare plain",
        "train relu-rnn",
        "score kenlm",
    ]


def test_names_and_outputs_are_of_one_case_each() -> None:
    names = [one.name for one in same.CASES]
    outputs = [place for one in same.CASES for place in one.outputs if one.name != "train killed, resumed"]
    assert len(set(names)) == len(names)
    assert len(set(outputs)) == len(outputs)
    assert {*same.GONE, *same.CHANGED} <= set(names)
