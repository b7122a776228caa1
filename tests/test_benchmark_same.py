"""The record of behaviour: this tree equals itself to the bit, and a number that moved is seen."""

from __future__ import annotations

import fnmatch
import math
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
    monkeypatch.setattr(same, "PRINTED_NOW", {})
    monkeypatch.setattr(same, "ON_PURPOSE", {"moved on purpose: [oe]*": "because"})
    monkeypatch.setattr(same, "GONE", {"taken out": "nobody needs it"})
    results = same.check(cases, ROOT, ROOT, tmp_path)
    assert [result.verdict for result in results] == ["ok"] * 4 + ["differs", "changed", "gone", "failed"]
    assert all(len(result.facts["old"]) > 20 for result in results[:4])
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].startswith("moved ")
    assert "DIFFERS out [0] 'Total: " in lines[4]
    assert "ok, 2 changed on purpose: because" in lines[5]
    assert "gone: nobody needs it" in lines[6]


@pytest.mark.parametrize(
    ("old", "new", "later", "how"),
    [
        (5.0, math.nextafter(5.0, 6), None, "5.0 → 5.000000000000001"),
        (5.0, math.nextafter(5.0, 6), same.Within(1e-6), None),
        (5.0, 5.1, same.Within(1e-6), "5.0 → 5.1"),
        (5, 6, same.Within(absolute=10), "5 → 6"),
        (5, 5.0, same.Within(1e-6), "5 → 5.0"),
        (["a", "b -1.25 c"], ["a", "b -1.26 c"], None, "[1] 'b -1.25 c' → 'b -1.26 c'"),
        (["a", "b -1.25 c"], ["a", "b -1.26 c"], same.Within(absolute=0.1), None),
        (["b 2 -1.25 c"], ["b 3 -1.25 c"], same.Within(absolute=10), "[0] 'b 2 -1.25 c' → 'b 3 -1.25 c'"),
        (["a"], ["a", "b"], None, "1 items → 2"),
        ("digest", "another", same.ANYTHING, None),
        ([100.0, 101.0, 102.0], [101.0, 103.0, 102.0], same.SAME_MEAN, None),
        ([100.0, 101.0, 102.0], [105.0, 103.0, 104.0], same.SAME_MEAN, "[0] 100.0 → 105.0"),
    ],
)
def test_facts_are_exact_but_for_what_a_case_allows(
    old: object, new: object, later: same.Within | None, how: str | None
) -> None:
    found = same.differences({"x": old}, {"x": new}, None if later is None else {"x*": later})
    assert found == ({} if how is None else {"x": how})


def test_a_fact_that_one_tree_alone_has_differs() -> None:
    assert same.differences({"x": 1}, {"y": None}, None) == {"x": "is not there any more", "y": "is new: None"}


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
    assert set(same.GONE) <= set(names)
    for both in same.ON_PURPOSE:
        assert fnmatch.filter(names, both.split(": ")[0]), both
