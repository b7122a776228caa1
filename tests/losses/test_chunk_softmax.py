"""Chunk softmax against its float64 reference, in all its forms, and what the penalty holds."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable

import pytest
import torch

from bnce import OutputBatch, OutputLayer, UserError
from bnce.losses.blocked import MAX_SCORES
from bnce.losses.chunk_nce import chunk_loss_by_position
from bnce.losses.chunk_softmax import chunk_softmax, chunk_softmax_each
from tests.losses import reference

EPS = torch.finfo(torch.float32).eps
SHAPES = [(1, 2), (3, 7), (4, 5), (2, 17)]
chunk_softmax_module = importlib.import_module("bnce.losses.chunk_softmax")


def chunk_softmax_by_position(batch: OutputBatch) -> torch.Tensor:
    """Compute it as on a GPU, with a column for every position."""
    return chunk_loss_by_position(batch, chunk_softmax_module._rule(batch.penalty))


def expected_loss(batch: OutputBatch) -> torch.Tensor:
    probs_V = batch.noise.log_probs_V.double().exp()
    return reference.chunk_softmax_loss(
        batch.hidden_TBD, batch.weight_VD, batch.bias_V, batch.target_TB, probs_V, batch.log_z, batch.penalty
    )


@pytest.mark.parametrize(("T", "B"), SHAPES)
@pytest.mark.parametrize("max_scores", [2**20, 40])
@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_equals_the_reference_with_its_gradients(
    make_batch: Callable[..., OutputBatch],
    T: int,
    B: int,
    max_scores: int,
    penalty: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MAX_SCORES, "cpu", max_scores)
    batch = dataclasses.replace(make_batch(T, B, 0), penalty=penalty)
    leaves = [batch.hidden_TBD, batch.weight_VD, batch.bias_V, batch.log_z]
    expected = expected_loss(batch)
    expected_grads = torch.autograd.grad(expected, leaves)
    for function in (chunk_softmax, chunk_softmax_by_position, lambda given: chunk_softmax_each(given).sum()):
        loss = function(batch)
        assert abs(float(loss.detach()) - float(expected.detach())) <= 64 * EPS * float(expected.detach())
        for found, wanted in zip(torch.autograd.grad(loss, leaves), expected_grads, strict=True):
            scale = max(float(wanted.norm()), float(expected.detach()))
            torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-4, atol=64 * EPS * scale)


def test_own_stream_is_left_out_by_position_not_by_word(make_batch: Callable[..., OutputBatch]) -> None:
    batch = dataclasses.replace(make_batch(3, 4, 0), penalty=0.2)
    everywhere = dataclasses.replace(batch, target_TB=torch.full_like(batch.target_TB, 2))
    torch.testing.assert_close(chunk_softmax(everywhere).double(), expected_loss(everywhere), rtol=1e-5, atol=0)


@pytest.mark.parametrize("form", [chunk_softmax, chunk_softmax_by_position])
def test_a_target_that_dominates_leaves_the_noise_to_be_seen(
    form: Callable[[OutputBatch], torch.Tensor], make_batch: Callable[..., OutputBatch]
) -> None:
    """A target of 60 nats more than the noise: taken out of a sum that it is in, nothing would be left."""
    batch = dataclasses.replace(make_batch(2, 3, 0), penalty=0.1)
    target_TB = torch.tensor([[3, 1, 2], [3, 2, 1]])
    with torch.no_grad():
        batch.bias_V[3] += 60.0
    batch = dataclasses.replace(batch, target_TB=target_TB)
    torch.testing.assert_close(form(batch).double(), expected_loss(batch), rtol=1e-5, atol=0)


def test_masked_positions_are_neither_noise_nor_data(make_batch: Callable[..., OutputBatch]) -> None:
    batch = dataclasses.replace(make_batch(2, 4, 0), penalty=0.1)
    valid_TB = torch.tensor([[True, True, True, False], [True, True, True, False]])
    kept = dataclasses.replace(batch, hidden_TBD=batch.hidden_TBD[:, :3], target_TB=batch.target_TB[:, :3].contiguous())
    masked = dataclasses.replace(batch, valid_TB=valid_TB)
    for form in (chunk_softmax, chunk_softmax_by_position, lambda given: chunk_softmax_each(given).sum()):
        torch.testing.assert_close(form(masked), form(kept), rtol=1e-5, atol=0)
        gradient = torch.autograd.grad(form(masked), batch.hidden_TBD)[0]
        assert gradient.isfinite().all()
        assert not gradient[:, 3].any()
        for few in ([True, False, False, False], [False] * 4):  # nothing has noise
            alone = dataclasses.replace(batch, valid_TB=torch.tensor([few, few]))
            assert float(form(alone).detach()) == 0.0
            assert not torch.autograd.grad(form(alone), batch.hidden_TBD)[0].any()


def test_without_a_penalty_nothing_promises_the_constant() -> None:
    counts = torch.ones(30)
    assert OutputLayer(4, 30, counts, loss="chunk-softmax").normalises
    assert not OutputLayer(4, 30, counts, loss="chunk-softmax", penalty=0.0).normalises
    with pytest.raises(UserError, match=r"penalty is 0\.0, but the loss chunk-bnce has no use for it: leave it out"):
        OutputLayer(4, 30, counts, loss="chunk-bnce", penalty=0.0)
    with pytest.raises(UserError, match="penalty is -1"):
        OutputLayer(4, 30, counts, penalty=-1.0)
