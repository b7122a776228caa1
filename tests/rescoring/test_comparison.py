"""Rates with intervals: what the bootstrap must give where it is known, and where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from bnce.rescoring.comparison import compare
from bnce.rescoring.nbest import NBest, Utterance
from bnce.rescoring.rescore import Judge

pytest.importorskip("jiwer")

U = 400


def make_judge(num_wrong: int, num_utterances: int = U) -> Judge:
    """Make two hypotheses of ten words for each utterance: the first has an error in some utterances."""
    right, wrong = " ".join("abcdefghij"), " ".join("abcdefghix")
    lists = [Utterance(str(one), [wrong if one < num_wrong else right, right]) for one in range(num_utterances)]
    return Judge(NBest(lists), [right] * num_utterances)


def test_intervals_are_those_of_the_binomial() -> None:
    judge = make_judge(100)
    compared = compare(judge, judge.first_U)
    assert compared.errors["before"].wer == compared.errors["after"].wer == 0.025
    # A quarter of 400 utterances with one error in ten words: the deviation of the rate is √(0.25 · 0.75 / 400) / 10.
    low, high = compared.intervals["before"]
    assert low == pytest.approx(0.025 - 1.96 * 0.00217, abs=0.0004)
    assert high == pytest.approx(0.025 + 1.96 * 0.00217, abs=0.0004)
    assert compared.intervals["difference"] == compared.intervals["oracle"] == (0, 0)
    assert compare(judge, judge.first_U) == compared


def test_the_difference_is_paired() -> None:
    judge = make_judge(200)
    best_U = judge.first_U.copy()
    best_U[:20] += 1  # twenty utterances get right, all others stay
    compared = compare(judge, best_U)
    assert compared.difference == pytest.approx(-20 / 4000)
    low, high = compared.intervals["difference"]
    assert low == pytest.approx(-0.005 - 1.96 * np.sqrt(0.05 * 0.95 / U) / 10, abs=0.0004)
    assert -0.005 < high < 0
    before, after = compared.intervals["before"], compared.intervals["after"]
    assert before.low < after.high  # though the two rates' intervals overlap
    *_, line = compared.lines()
    assert line.startswith("WER after − before: -0.50 points; 95% interval -0.7")
    assert line.endswith("points (paired bootstrap). Rescoring makes these lists better.")


def test_few_utterances_and_equal_rates_are_no_verdict() -> None:
    few = make_judge(5, num_utterances=5)
    *_, line = compare(few, few.oracle_U).lines()
    assert line.endswith("5 utterances are too few to judge.")
    worse = Judge(NBest([Utterance(str(one), ["a b", "a x"]) for one in range(U)]), ["a b"] * U)
    *_, line = compare(worse, worse.first_U + 1).lines()
    assert line.endswith("Rescoring makes these lists worse.")
    same = make_judge(100)
    *_, line = compare(same, same.first_U).lines()
    assert line.endswith("No rate has changed.")


@pytest.mark.parametrize("references", [["", ""], ["a", ""], ["a"]])
def test_without_two_utterances_there_is_no_interval(references: list[str]) -> None:
    judge = Judge(NBest([Utterance(str(one), ["a b", "a"]) for one in range(len(references))]), references)
    compared = compare(judge, judge.first_U)
    assert compared.intervals == {}
    assert compared.to_dict()["before"]["interval"] is None
    assert len(list(compared.lines())) == 3
    assert (compared.difference is None) is (references == ["", ""])


def test_draws_without_words_are_left_out() -> None:
    judge = Judge(NBest([Utterance(str(one), ["a"]) for one in range(4)]), ["a", "b", "", ""])
    assert compare(judge, judge.first_U).intervals["after"].high > 1
