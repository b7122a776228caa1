"""What every model has, whatever it is: one sentence a text, blocks of bounded size, and all calls by a few of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bnce.scoring import model as model_module
from bnce.scoring.model import sentence_blocks
from bnce.text.normalise import Normaliser

from .unigram import ONE, Unigram


def test_a_text_is_one_sentence() -> None:
    assert Unigram({}, Normaliser()).words("One. Two!\nThree") == ["one", ".", "two", "!", "three"]
    assert Unigram({}, Normaliser()).words(" \n") == []
    assert Unigram({}, Normaliser(False, "whitespace", "split")).words("A b. C") == ["A", "b.", "C"]


def test_blocks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "BLOCK_SENTENCES", 3)
    monkeypatch.setattr(model_module, "BLOCK_WORDS", 5)
    sentences = [["a"] * length for length in (1, 1, 1, 0, 6, 2, 2)]
    assert [[len(one) for one in block] for block in sentence_blocks(sentences)] == [[1, 1, 1], [0, 6], [2, 2]]
    assert list(sentence_blocks([])) == []


def test_a_new_kind_of_model_gets_the_calls_from_text() -> None:
    """`score_words`, `start`, `advance` and `next_log_probs` are enough; `word_by_word` has the rest."""
    (scored,) = ONE.score(["a b zebra"])
    assert scored.words == ["a", "b", "zebra", "</s>"]
    np.testing.assert_allclose(10**scored.log10_probs, [0.5, 0.125, 0.125, 0.25])
    assert scored.oov.tolist() == [False, False, True, False]
    assert scored.ids == [2, 3, 1, 0]
    first, second = ONE.rescore(["b", ("a", -0.1)], after=ONE.read(ONE.start(), "a b"))
    assert (first.text, second.text) == ("a", "b")
    assert first.log_prob == pytest.approx(math.log(0.5 * 0.25))
    assert (ONE.vocab_size, ONE.log_z, ONE.max_context, ONE.device) == (4, None, None, "cpu")
    assert (ONE.has_constant, ONE.self_normalised, ONE.reader().check()) == (False, True, None)
