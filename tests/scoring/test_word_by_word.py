"""What any model can do word by word, by the example of one whose probabilities never change."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bnce.errors import UserError
from bnce.scoring.sampling import Sampling

from .unigram import ONE


def test_the_likeliest_words() -> None:
    found = ONE.next_words("a", 100)
    assert [word.word for word in found[:2]] == ["a", "</s>"]
    assert [word.prob for word in found] == pytest.approx([0.5, 0.25, 0.125, 0.125])
    assert ONE.next_words_after([["a"], []], 2) == [found[:2]] * 2
    with pytest.raises(UserError, match="The number of next words is 0"):
        ONE.next_words("a", 0)


def test_texts() -> None:
    assert ONE.generate("b", 2, 3, Sampling(temperature=0)) == ["b a a a …"] * 2
    texts = ONE.generate("b", 200, 2, seed=3)
    assert texts == ONE.generate("b", 200, 2, seed=3)
    # Without <unk> seven eighths are left, of which `</s>` has two.
    assert texts.count("b") / 200 == pytest.approx(2 / 7, abs=0.1)
    with pytest.raises(UserError, match="both numbers must be 1 or more"):
        ONE.generate("b", 0)


def test_a_beam_search() -> None:
    scorer = ONE.scorer()
    states = scorer.advance([scorer.start()] * 2, [2, 3])
    expected = np.array([[0.5, 0.125], [0.25, 0.5]])
    np.testing.assert_allclose(np.exp(scorer.score(states, [[2, 3], [0, 2]])), expected)
    np.testing.assert_allclose(np.exp(scorer.score(states, torch.tensor([2, 2]))), expected[0, [0, 0]])
