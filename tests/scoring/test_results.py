"""Sums over sentences and the perplexities that follow from them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from bnce import files
from bnce.scoring.results import LN_10, ScoredSentence, Totals, get_layout


def sentence(values: list[float], oov: list[bool]) -> ScoredSentence:
    words = [*(f"w{place}" for place in range(len(values) - 1)), "</s>"]
    return ScoredSentence(
        words, list(range(len(values))), LN_10 * np.array(values), np.array(oov), np.full(len(values), 2)
    )


def written(layout: str, scored: ScoredSentence) -> str:
    sentence = get_layout(layout, per_word=True).sentence
    assert sentence is not None
    return sentence(scored)


def test_words_of_no_probability_are_counted_apart_from_unknown_ones() -> None:
    found = Totals.of([sentence([-1, -math.inf, -2, -4], [False, False, True, False])])
    assert (found.num_oov, found.num_zero_probs) == (1, 1)
    assert (found.log_prob, found.log_prob_no_oov) == (-math.inf, pytest.approx(-5 * LN_10))
    one = sentence([-1.0, -math.inf, -2.0], [False] * 3)
    assert "1 zeroprobs, logprob= -3 ppl= 31.62278 ppl1= 1000" in written("srilm", one)
    assert "Total: -inf OOV: 0" in written("kenlm", one)
    summary = get_layout("kenlm").summary(Totals.of([one]), "")
    assert "including OOVs:\tinf\nPerplexity excluding OOVs:\t31.62278" in summary


def test_a_perplexity_beyond_all_numbers_is_infinite() -> None:
    assert Totals.of([sentence([-1000.0], [False])]).perplexities()["ppl"] == math.inf


def test_a_sentence_as_json() -> None:
    record = json.loads(files.to_json(sentence([-1, -math.inf, -0.5], [False, True, False]).to_dict()))
    assert record["words"] == ["w0", "w1", "</s>"]
    assert record["log10_probs"] == [pytest.approx(-1), None, pytest.approx(-0.5)]
    assert record["oov"] == [False, True, False]
    assert record["num_oov"] == 1
    assert record["ppl_no_oov"] == pytest.approx(10**0.75)
    assert record["ppl"] is None
