"""Noise that follows the word before: its probabilities, its draws, and how the words before reach the loss."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from small_corpus import Watcher, small_config, small_corpus

from bnce import OutputLayer, UserError
from bnce.losses import OutputBatch, by_equation
from bnce.losses.bigram_noise import BigramNoise, count_bigrams
from bnce.losses.sampled_nce import nce, nce_each
from bnce.training.plan import create_run
from bnce.training.run import run_training
from bnce.training.trainer import Trainer
from tests.training.test_resume import assert_the_same_to_the_bit, train_in_pieces

V = 11
EPS = torch.finfo(torch.float32).eps
CPU = torch.device("cpu")


def text(num_tokens: int = 300) -> np.ndarray:
    """Make a text whose words depend on each other; the last word never occurs, so nothing follows it."""
    generator = np.random.default_rng(2)
    ids = generator.integers(0, V - 1, num_tokens)
    ids[1::2] = (3 * ids[::2] + 1) % (V - 1)
    return ids


@pytest.fixture
def noise() -> BigramNoise:
    ids = text()
    return count_bigrams(np.bincount(ids, minlength=V), ids, start=0)


def by_hand(before: int) -> np.ndarray:
    ids = text()
    counts_V = np.maximum(np.bincount(ids, minlength=V), np.bincount(ids)[:-1].min()).astype(float)
    counts_V[-1] = counts_V[:-1][counts_V[:-1] > 0].min()
    share_V = counts_V / counts_V.sum()
    followers = [word for previous, word in zip([0, *ids[:-1]], ids, strict=True) if previous == before]
    different = max(1, len(set(followers)))
    return (np.bincount(followers, minlength=V) + different * share_V) / (len(followers) + different)


@pytest.mark.parametrize("before", range(V))
def test_probabilities_are_witten_and_bell_s(noise: BigramNoise, before: int) -> None:
    found_V = noise.log_prob_after(torch.tensor(before), torch.arange(V)).double().exp()
    assert float(found_V.sum()) == pytest.approx(1, abs=1e-6)
    assert (found_V > 0).all()
    torch.testing.assert_close(found_V.numpy(), by_hand(before), rtol=1e-5, atol=0)


@pytest.mark.parametrize("before", [0, 4, V - 1])
def test_draws_follow_the_probabilities(noise: BigramNoise, before: int) -> None:
    num_draws = 20_000
    words_K = noise.sample_after(torch.tensor(before), num_draws, torch.Generator().manual_seed(1))
    expected_V = noise.log_prob_after(torch.tensor(before), torch.arange(V)).double().exp() * num_draws
    squares_V = (torch.bincount(words_K, minlength=V) - expected_V) ** 2 / expected_V
    assert float(squares_V.sum()) < 35  # χ² with 10 degrees of freedom exceeds it once in 8000 times


def test_tables_move_and_keep_their_values(noise: BigramNoise) -> None:
    before_B, words_BV = torch.arange(V), torch.arange(V).expand(V, V)
    expected = noise.log_prob_after(before_B, words_BV)
    assert not noise.state_dict()
    for moved in (copy.deepcopy(noise), copy.deepcopy(noise).to(torch.bfloat16)):
        assert torch.equal(moved.log_prob_after(before_B, words_BV), expected)
    exact = copy.deepcopy(noise).double().log_prob_after(before_B, words_BV)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact.float(), expected)
    anew = copy.deepcopy(noise).to_empty(device="cpu")
    assert torch.equal(anew.log_prob_after(before_B, words_BV), expected)


def test_words_and_targets_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="There are 2 words before 3 targets: give one for each"):
        BigramNoise(np.ones(4), np.zeros(2), np.zeros(3))


@pytest.mark.parametrize("masked", [False, True])
def test_nce_equals_the_reference(make_batch: Callable[..., OutputBatch], noise: BigramNoise, masked: bool) -> None:
    batch = dataclasses.replace(make_batch(3, 4, 5), noise=noise, before_TB=torch.arange(12).reshape(3, 4) % V)
    leaves = [batch.hidden_TBD, batch.weight_VD, batch.bias_V, batch.log_z]
    torch.manual_seed(7)
    expected = by_equation.nce(batch)
    torch.manual_seed(7)
    loss = nce(batch)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=64 * EPS)
    for found, wanted in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    if masked:
        valid_TB = torch.arange(12).reshape(3, 4) % 3 != 0
        torch.manual_seed(7)
        each_TB = nce_each(dataclasses.replace(batch, valid_TB=valid_TB))
        assert (each_TB != 0).tolist() == valid_TB.tolist()


def test_words_before_that_are_missing_are_told(make_batch: Callable[..., OutputBatch], noise: BigramNoise) -> None:
    with pytest.raises(UserError, match="depends on the word before each target, but these words were not given"):
        nce(dataclasses.replace(make_batch(3, 4, 5), noise=noise))
    layer = OutputLayer(4, V, noise, "nce", num_noise=3)
    hidden_TBD, words_TB = torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.long)
    assert layer.loss_sum(hidden_TBD, words_TB, before=words_TB).isfinite()
    with pytest.raises(UserError, match="were not given"):
        layer(hidden_TBD, words_TB)


@pytest.mark.parametrize("loss", ["snce", "sampled-softmax", "blackout", "negative-sampling", "bnce"])
def test_other_losses_refuse_it(noise: BigramNoise, loss: str) -> None:
    with pytest.raises(UserError, match=r"Bigram noise is for nce|bigram noise would train a wrong model"):
        OutputLayer(4, V, noise, loss, num_noise=3)


@pytest.mark.parametrize("body", ["ffnn", "lstm", "transformer"])
def test_the_words_before_are_those_of_the_text(tmp_path: Path, body: str) -> None:
    """Every pair of a word before and a target that the loss sees is one that was counted, each as often."""
    corpus = small_corpus(tmp_path / "corpus")
    config = small_config(corpus, model={"name": body}, loss={"name": "nce", "num_noise": 4, "noise": "bigram"})
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, epochs=1))
    trainer = Trainer(create_run(tmp_path / "run", config, corpus), corpus, CPU, Watcher())
    noise, pairs = trainer.model.output.noise, []
    assert isinstance(noise, BigramNoise)
    look_up = noise.log_prob_after

    def watch(before: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        pairs.append((before * len(noise) + words[..., 0]).flatten())
        return look_up(before, words)

    noise.log_prob_after = watch  # type: ignore[method-assign]
    assert trainer.train()
    seen, counts = torch.cat(pairs).unique(return_counts=True)
    assert torch.equal(seen, noise.pair_E)
    assert torch.equal(counts, noise.cumulated_F.diff())


def test_stopped_and_resumed(tmp_path: Path) -> None:
    corpus = small_corpus(tmp_path / "corpus")
    config = small_config(corpus, loss={"name": "nce", "num_noise": 4, "noise": "bigram"})
    unbroken = create_run(tmp_path / "unbroken", config, corpus)
    run_training(unbroken, corpus, CPU, Watcher())
    broken = create_run(tmp_path / "broken", config, corpus)
    train_in_pieces(broken, corpus, [3, 20, 51])
    assert_the_same_to_the_bit(broken, unbroken)
