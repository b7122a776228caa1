"""The n-gram estimator of the benchmarks: probabilities sum to one after every history, and KenLM reads the same."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.arpa import estimate, write_arpa
from bnce.use.ngram import open_ngram

WORDS = ["</s>", "<unk>", "a", "b", "c", "never"]
kenlm = pytest.importorskip("kenlm")


def text(num_sentences: int, seed: int = 1) -> np.ndarray:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 7, num_sentences)
    # Numbers that grow are likelier to go on growing: something for contexts to learn.
    return np.concatenate(
        [[*np.sort(generator.choice([1, 2, 3, 4], length, p=[0.1, 0.4, 0.3, 0.2])), 0] for length in lengths]
    )


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("num_sentences", [1, 3, 400])
def test_probabilities_sum_to_one_after_every_history(tmp_path: Path, order: int, num_sentences: int) -> None:
    path = tmp_path / "small.arpa"
    write_arpa(path, WORDS, estimate(text(num_sentences), len(WORDS), order))
    model = open_ngram(path).model
    for history in itertools.chain(
        [()], itertools.product(WORDS[1:], repeat=1), itertools.product(WORDS[1:], repeat=2)
    ):
        state, after = kenlm.State(), kenlm.State()
        model.BeginSentenceWrite(state)
        for word in history:
            model.BaseScore(state, word, after)
            state, after = after, kenlm.State()
        total = sum(10 ** model.BaseScore(state, word, after) for word in WORDS)
        assert total == pytest.approx(1, abs=1e-4), history


def test_counts_by_hand() -> None:
    """Three sentences, `a b`, `a b` and `a c`: bigrams keep their counts, unigrams count their contexts."""
    ids = np.array([2, 3, 0, 2, 3, 0, 2, 4, 0])
    unigrams, bigrams = estimate(ids, len(WORDS), 2)
    # Contexts: a after <s>; b after a; c after a; </s> after b and c.
    discount = {1: 0.5, 2: 1.0}
    left = (3 * discount[1] + discount[2]) / 5
    expected = [(2 - discount[2]) / 5, 0, 0.5 / 5, 0.5 / 5, 0.5 / 5, 0]
    np.testing.assert_allclose(unigrams.prob_N[:-1], np.array(expected) + left / len(WORDS))
    base = len(WORDS) + 1
    a_b = bigrams.prob_N[np.searchsorted(bigrams.key_N, 2 * base + 3)]
    assert a_b == pytest.approx((2 - 1.0) / 3 + (1.0 + 0.5) / 3 * unigrams.prob_N[3])
    assert unigrams.backoff_N[2] == pytest.approx((1.0 + 0.5) / 3)


def test_contexts_help(tmp_path: Path) -> None:
    """A higher order is better on text of the same kind."""
    perplexities = []
    for order in (2, 3):
        path = tmp_path / f"{order}.arpa"
        write_arpa(path, WORDS, estimate(text(2000), len(WORDS), order))
        held_out = text(500, seed=2)
        sentences = [
            [WORDS[i] for i in part[:-1]] for part in np.split(held_out, np.flatnonzero(held_out == 0) + 1)[:-1]
        ]
        scores = open_ngram(path).score(sentences)
        perplexities.append(math.exp(-np.concatenate([one.log_probs for one in scores]).mean()))
    assert perplexities[0] > perplexities[1]


def test_an_order_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="The order is 4"):
        estimate(text(3), len(WORDS), 4)
