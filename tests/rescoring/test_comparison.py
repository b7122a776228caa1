"""Errors before and after with intervals: what the bootstrap must give where it is known, and where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command

from .made_lists import save

U = 400
RIGHT, WRONG = " ".join("abcdefghij"), " ".join("abcdefghix")
Hypotheses = list[tuple[str, float]]  # texts and scores


@pytest.fixture
def rescored(bnce: Command, trained: Path, tmp_path: Path) -> Callable[..., tuple[dict[str, Any], list[str]]]:
    """Give a command that takes the hypotheses with the highest scores; gives the JSON object and the lines told."""

    def run(references: Iterable[str], lists: Iterable[Hypotheses]) -> tuple[dict[str, Any], list[str]]:
        records = [
            {"utt": str(place), "ref": reference, "hyps": [{"text": text, "am": score} for text, score in own]}
            for place, (reference, own) in enumerate(zip(references, lists, strict=True))
        ]
        arguments = ["rescore", trained, save(tmp_path / "lists.jsonl", map(json.dumps, records)), "--weight", "lm=0"]
        return bnce(*arguments, "--json").json, bnce(*arguments).stderr.splitlines()

    return run


def two(num_wrong: int, num_better: int, num_utterances: int = U) -> list[Hypotheses]:
    """Make two hypotheses of ten words for each utterance: the first has an error in some, the second is right.

    In some of these the second has the higher score.
    """
    return [
        [(WRONG if place < num_wrong else RIGHT, 1.0), (RIGHT, 2.0 if place < num_better else 0.0)]
        for place in range(num_utterances)
    ]


def test_kinds_of_errors(rescored: Callable[..., Any]) -> None:
    for reference, hypothesis, errors in (
        ("the cat sat down", "the cat sat down", (4, 0, 0, 0)),
        ("the cat sat down", "the bat sat", (4, 1, 1, 0)),
        ("the cat sat down", "oh the cat sat  down", (4, 0, 0, 1)),
        ("the cat sat down", "", (4, 0, 4, 0)),
        ("the cat sat down", "The cat sat down", (4, 1, 0, 0)),  # as it is written
        ("", "", (0, 0, 0, 0)),
        ("", "a b", (0, 0, 0, 2)),
    ):
        found, told = rescored([reference], [[(hypothesis, 0.0)]])
        before = found["before"]
        names = ("num_words", "substitutions", "deletions", "insertions")
        assert tuple(before[name] for name in names) == errors
        assert before["wer"] == (sum(errors[1:]) / errors[0] if errors[0] else None)
        assert any(line.startswith("WER before undefined (") for line in told) is (not errors[0])


def test_intervals_are_those_of_the_binomial(rescored: Callable[..., Any]) -> None:
    found, told = rescored([RIGHT] * U, two(100, 0))
    assert found["before"]["wer"] == found["after"]["wer"] == 0.025
    # A quarter of 400 utterances with one error in ten words: the deviation of the rate is √(0.25 · 0.75 / 400) / 10.
    low, high = found["before"]["interval"]
    assert low == pytest.approx(0.025 - 1.96 * 0.00217, abs=0.0004)
    assert high == pytest.approx(0.025 + 1.96 * 0.00217, abs=0.0004)
    assert found["difference"]["interval"] == found["oracle"]["interval"] == [0, 0]
    assert any(line.endswith("No rate has changed.") for line in told)
    again, _ = rescored([RIGHT] * U, two(100, 0))
    assert again["before"] == found["before"]


def test_the_difference_is_paired(rescored: Callable[..., Any]) -> None:
    found, told = rescored([RIGHT] * U, two(200, 20))  # twenty utterances get right, all others stay
    assert found["difference"]["wer"] == pytest.approx(-20 / 4000)
    low, high = found["difference"]["interval"]
    assert low == pytest.approx(-0.005 - 1.96 * np.sqrt(0.05 * 0.95 / U) / 10, abs=0.0004)
    assert -0.005 < high < 0
    assert found["before"]["interval"][0] < found["after"]["interval"][1]  # though the two rates' intervals overlap
    (line,) = (line for line in told if line.startswith("WER after − before: "))
    assert line.startswith("WER after − before: -0.50 points; 95% interval -0.7")
    assert line.endswith("points (paired bootstrap). Rescoring makes these lists better.")


def test_few_utterances_are_no_verdict_and_worse_is_told(rescored: Callable[..., Any]) -> None:
    _, told = rescored([RIGHT] * 5, two(5, 5, num_utterances=5))
    assert any(line.endswith("5 utterances are too few to judge.") for line in told)
    _, told = rescored(["a b"] * U, [[("a b", 0.0), ("a x", 1.0)]] * U)
    assert any(line.endswith("Rescoring makes these lists worse.") for line in told)


@pytest.mark.parametrize("references", [["", ""], ["a", ""], ["a"]])
def test_without_two_utterances_there_is_no_interval(rescored: Callable[..., Any], references: list[str]) -> None:
    found, told = rescored(references, [[("a b", 1.0), ("a", 0.0)]] * len(references))
    assert found["before"]["interval"] is None
    assert (found["difference"]["wer"] is None) is (references == ["", ""])
    assert len([line for line in told if line.startswith("WER ")]) == 3


def test_draws_without_words_are_left_out(rescored: Callable[..., Any]) -> None:
    found, _ = rescored(["a", "b", "", ""], [[("a", 0.0)]] * 4)
    assert found["after"]["interval"][1] > 1
