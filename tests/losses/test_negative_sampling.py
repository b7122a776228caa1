"""Negative sampling against its float64 reference with the same drawn words, how it starts, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_corpus import Watcher, small_config, small_corpus

import bnce
from bnce import OutputBatch, OutputLayer, noise
from bnce.losses.blocked import MAX_SCORES
from bnce.losses.negative_sampling import negative_sampling, negative_sampling_each
from bnce.training.plan import create_run
from bnce.training.run import run_training
from tests.losses import by_equation

EPS = torch.finfo(torch.float32).eps
MakeBatch = Callable[..., OutputBatch]
FORMS = [negative_sampling, lambda batch: negative_sampling_each(batch).sum()]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("T", "B", "K"), [(1, 1, 1), (3, 5, 4), (2, 7, 30)])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("max_scores", [1, 2**20])
def test_equals_the_reference_with_its_gradients(
    make_batch: MakeBatch,
    form: Callable[[OutputBatch], torch.Tensor],
    T: int,
    B: int,
    K: int,
    sparse: bool,
    max_scores: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MAX_SCORES, "cpu", max_scores)
    batch = make_batch(T, B, K, sparse=sparse)
    leaves = [batch.hidden_TBD, batch.weight_VD, batch.bias_V]
    torch.manual_seed(7)
    expected = by_equation.negative_sampling(batch)
    torch.manual_seed(7)
    loss = form(batch)
    scale = float(expected.detach())
    assert abs(float(loss.detach()) - scale) <= 64 * EPS * scale
    expected_grads = torch.autograd.grad(3 * expected, leaves)
    for found, wanted in zip(torch.autograd.grad(3 * loss, leaves), expected_grads, strict=True):
        found = found.to_dense() if found.is_sparse else found
        torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-4, atol=64 * EPS * scale)


@pytest.mark.parametrize("form", FORMS)
def test_masked_positions_have_no_part(make_batch: MakeBatch, form: Callable[[OutputBatch], torch.Tensor]) -> None:
    valid_TB = torch.tensor([[True, False, True], [False, False, False]])
    batch = make_batch(2, 3, 4, valid_TB=valid_TB)
    (gradient_TBD,) = torch.autograd.grad(form(batch), batch.hidden_TBD)
    assert (gradient_TBD != 0).any(2).tolist() == valid_TB.tolist()


def test_it_starts_where_scores_are_the_odds_of_the_unigram() -> None:
    counts = torch.tensor([50.0, 30.0, 15.0, 5.0])
    layer = OutputLayer(3, 4, noise.unigram(counts, 0.75), "negative-sampling", num_noise=7)
    expected_V = (counts / counts.sum()).log() - layer.noise.log_probs_V - math.log(7)
    torch.testing.assert_close(layer.bias.detach(), expected_V)
    assert not layer.normalises


def test_training_and_evaluation_say_that_its_perplexity_is_none(tmp_path: Path) -> None:
    corpus, watcher, told = small_corpus(tmp_path / "corpus"), Watcher(), []
    config = small_config(corpus, loss={"name": "negative-sampling", "num_noise": 5, "noise_power": 0.75})
    run = create_run(tmp_path / "run", config, corpus)
    summary = run_training(run, corpus, torch.device("cpu"), watcher)
    bnce.evaluate(tmp_path / "run", device="cpu", notice=told.append)
    for sentences in (watcher.sentences, summary["warnings"], told):
        assert [sentence for sentence in sentences if sentence.startswith("Negative sampling learns no prob")]
        assert not [sentence for sentence in sentences if "worse than at the start" in sentence]
