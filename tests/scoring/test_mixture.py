"""Mixtures: sums of probabilities, and weights that EM finds where they are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bnce.errors import UserError
from bnce.ngrams.arpa import AS_IT_STANDS
from bnce.scoring.component import Component, Words, WordScores
from bnce.scoring.mixture import MAX_GAIN, Mixture, TextScores, find_weights, mix, shared_normaliser
from bnce.text.normalise import Normaliser


class Unigram(Component):
    """A component of fixed probabilities; words without one are unknown and get the rest."""

    def __init__(self, probs: dict[str, float], normaliser: Normaliser = AS_IT_STANDS, name: str = "unigram") -> None:
        self.probs, self.normaliser, self.name = probs, normaliser, name

    def score(self, sentences: Sequence[Words], share_prefixes: bool = False) -> list[WordScores]:
        rest = 1 - sum(self.probs.values())
        found = []
        for words in sentences:
            with np.errstate(divide="ignore"):
                log_probs = np.log([self.probs.get(word, rest) for word in [*words, "</s>"]])
            oov = np.array([word not in self.probs for word in [*words, "</s>"]])
            found.append(WordScores(log_probs, oov, [1] * len(log_probs)))
        return found


ONE = Unigram({"</s>": 0.25, "a": 0.5, "b": 0.125})
OTHER = Unigram({"</s>": 0.25, "a": 0.25, "c": 0.25})


def test_probabilities_are_summed() -> None:
    (scores,) = Mixture([ONE, OTHER], [0.75, 0.25]).score([["a", "b", "c", "d"]])
    expected = [
        0.75 * 0.5 + 0.25 * 0.25,
        0.75 * 0.125 + 0.25 * 0.25,
        0.75 * 0.125 + 0.25 * 0.25,
        0.75 * 0.125 + 0.25 * 0.25,
        0.25,
    ]
    np.testing.assert_allclose(np.exp(scores.log_probs), expected)
    # A word is OOV where nobody knows it.
    assert scores.oov.tolist() == [False, False, False, True, False]


def test_weights_of_nothing_and_probabilities_of_nothing() -> None:
    log_prob_KN = np.log([[0.5, 1e-300], [0.25, 1e-320]])
    np.testing.assert_allclose(mix(log_prob_KN, np.array([1.0, 0.0])), log_prob_KN[0])
    assert mix(np.full((2, 1), -np.inf), np.array([0.5, 0.5])).tolist() == [-np.inf]
    np.testing.assert_allclose(mix(np.array([[-1000.0], [-1001.0]]), np.array([0.5, 0.5])), [-1000.379885], atol=1e-5)


def test_em_finds_the_share_of_each_source() -> None:
    generator = np.random.default_rng(1)
    probs_KV = np.array([[0.6, 0.2, 0.1, 0.1], [0.1, 0.1, 0.2, 0.6], [0.25, 0.25, 0.25, 0.25]])
    truth = np.array([0.7, 0.3, 0.0])
    text = generator.choice(4, 50_000, p=truth @ probs_KV)
    found = find_weights(np.log(probs_KV[:2, text]))
    np.testing.assert_allclose(found, truth[:2], atol=0.02)
    assert found.sum() == pytest.approx(1)
    # No other weights are likelier.
    best = mix(np.log(probs_KV[:2, text]), found).mean()
    for weight in np.linspace(0.01, 0.99, 50):
        assert mix(np.log(probs_KV[:2, text]), np.array([weight, 1 - weight])).mean() <= best + MAX_GAIN


def test_em_at_the_edges() -> None:
    np.testing.assert_allclose(find_weights(np.log([[0.5, 0.5], [0.1, 0.1]])), [1, 0], atol=1e-4)
    np.testing.assert_allclose(find_weights(np.log([[0.5, 0.1], [0.5, 0.1]])), [0.5, 0.5])
    np.testing.assert_allclose(find_weights(np.array([[-5000.0, -1.0], [-5001.0, -3.0]])), [1, 0], atol=1e-4)
    with_zeros = np.array([[-np.inf, -1.0, -np.inf], [-2.0, -np.inf, -np.inf]])
    np.testing.assert_allclose(find_weights(with_zeros), [0.5, 0.5], atol=1e-3)
    with pytest.raises(UserError, match="no word that every component knows"):
        find_weights(np.zeros((2, 0)))


def test_where_vocabularies_differ_known_words_decide() -> None:
    same = TextScores.of([ONE, ONE], [["a", "zebra"], []])
    assert not same.vocabularies_differ
    assert same.comparable.shape == (2, 4)
    scores = TextScores.of([ONE, OTHER], [["a", "b", "zebra"], ["c"]])
    assert scores.vocabularies_differ
    np.testing.assert_allclose(np.exp(scores.comparable), [[0.5, 0.25, 0.25], [0.25, 0.25, 0.25]])
    report = scores.report(np.array([0.5, 0.5]))
    assert (report["num_tokens"], report["num_known"]) == (6, 3)
    assert report["components"][0]["ppl_known"] == pytest.approx((0.5 * 0.25 * 0.25) ** (-1 / 3))
    assert report["mixture"]["ppl_known"] == pytest.approx((0.375 * 0.25 * 0.25) ** (-1 / 3))
    with pytest.raises(UserError, match="The text has no sentence"):
        TextScores.of([ONE], [])


def test_one_way_to_read_text() -> None:
    runs = Normaliser(True, "words", "split")
    assert shared_normaliser([ONE, OTHER]) == AS_IT_STANDS
    assert shared_normaliser([ONE, Unigram({}, runs)]) == runs
    with pytest.raises(UserError, match="'x' and 'y' cut text into words in different ways"):
        shared_normaliser([Unigram({}, runs, "x"), Unigram({}, Normaliser(False), "y")])


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ([1.0], "A mixture of 2 components with 1 weights"),
        ([0.5, 0.6], "The weights of the mixture are 0.5, 0.6: they must be from 0 to 1 and sum to 1"),
        ([1.5, -0.5], "they must be from 0 to 1"),
        ([float("nan"), 1.0], "they must be from 0 to 1"),
    ],
)
def test_refused_weights(weights: list[float], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Mixture([ONE, OTHER], weights)
