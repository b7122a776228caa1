"""What every model has, whatever it is: one sentence a text, and all calls by a few of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bnce import Normaliser, Sampling

from .models import ONE, Unigram


def test_a_text_is_one_sentence() -> None:
    assert Unigram({}, Normaliser()).words("One. Two!\nThree") == ["one", ".", "two", "!", "three"]
    assert Unigram({}, Normaliser()).words(" \n") == []
    assert Unigram({}, Normaliser(False, "whitespace", "split")).words("A b. C") == ["A", "b.", "C"]


def test_a_new_kind_of_model_gets_the_calls_from_text() -> None:
    """`log_probs`, `advance_all` and `distribution` are enough; `Model` has the rest."""
    (scored,) = ONE.score(["a b zebra"])
    assert scored.words == ["a", "b", "zebra", "</s>"]
    np.testing.assert_allclose(np.exp(scored.log_probs), [0.5, 0.125, 0.125, 0.25])
    assert scored.oov.tolist() == [False, False, True, False]
    assert scored.ids == [2, 3, 1, 0]
    first, second = ONE.rescore(["b", ("a", -0.1)], after=ONE.read(ONE.start(), "a b"))
    assert (first.text, second.text) == ("a", "b")
    assert first.log_prob == pytest.approx(math.log(0.5 * 0.25))
    assert (ONE.vocab_size, ONE.log_z, ONE.max_context, ONE.device) == (4, None, None, "cpu")
    assert (ONE.self_normalised, ONE.choose_mode(None)) == (True, "normalised")


def test_a_notebook_shows_what_it_is() -> None:
    assert repr(ONE) == f"<bnce.Model: unigram {ONE.name!r}, vocab_size=4, device='cpu'>"


def test_the_likeliest_words() -> None:
    found = ONE.next_words("a", 100)
    assert [word.word for word in found[:2]] == ["a", "</s>"]
    assert [word.prob for word in found] == pytest.approx([0.5, 0.25, 0.125, 0.125])
    assert ONE.next_words_after([["a"], []], 2) == [found[:2]] * 2


def test_texts() -> None:
    assert ONE.generate("b", 2, 3, Sampling(temperature=0)) == ["b a a a …"] * 2
    texts = ONE.generate("b", 200, 2, seed=3)
    assert texts == ONE.generate("b", 200, 2, seed=3)
    # Without <unk> seven eighths are left, of which `</s>` has two.
    assert texts.count("b") / 200 == pytest.approx(2 / 7, abs=0.1)


def test_a_beam_search() -> None:
    scorer = ONE.scorer()
    states = scorer.advance([scorer.start()] * 2, [2, 3])
    expected = np.array([[0.5, 0.125], [0.25, 0.5]])
    np.testing.assert_allclose(np.exp(scorer.score(states, [[2, 3], [0, 2]])), expected)
    np.testing.assert_allclose(np.exp(scorer.score(states, torch.tensor([2, 2]))), expected[0, [0, 0]])
