"""What parts say of a text: weights that EM finds where they are known, and perplexities."""

from __future__ import annotations

import numpy as np
import pytest

from bnce import UserError
from bnce.scoring.interpolation import MAX_GAIN, TextScores, evaluate_sentences, find_weights
from bnce.scoring.mixture import MixtureModel, mix

from .unigram import ONE, OTHER


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


def test_a_mixture_is_evaluated_with_its_parts() -> None:
    mixture = MixtureModel([ONE, OTHER], [0.5, 0.5])
    done: list[int] = []
    record = evaluate_sentences(mixture, [["a", "b"], ["zebra"], []], done.append)
    mixed = [0.375, (0.125 + 0.25) / 2, 0.25, (0.125 + 0.25) / 2, 0.25, 0.25]
    assert record["ppl_f"] == pytest.approx(np.prod(mixed) ** (-1 / 6))
    assert record["ppl_f_no_unk"] == pytest.approx(np.prod([mixed[place] for place in (0, 1, 2, 4, 5)]) ** (-1 / 5))
    assert record["log10_prob_f"] == pytest.approx(np.log10(mixed).sum())
    assert record["components"][0]["ppl_f"] == pytest.approx((0.5 * 0.125 * 0.125 * 0.25**3) ** (-1 / 6))
    assert [part["weight"] for part in record["components"]] == [0.5, 0.5]
    assert (record["num_tokens"], record["num_oov"], record["num_sentences"]) == (6, 1, 3)
    assert (record["ppl_n"], record["vocabularies_differ"], done) == (None, True, [6])
    with pytest.raises(UserError, match="The text has no sentence to evaluate"):
        evaluate_sentences(mixture, [])
