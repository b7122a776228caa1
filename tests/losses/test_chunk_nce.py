"""Chunk B-NCE and chunk softmax against their float64 references: a position's own stream is no noise to it."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable

import pytest
import torch
from making import layer_of

from bnce import OutputBatch, UserError
from bnce.losses.batch_nce import batch_nce
from bnce.losses.blocked import MAX_SCORES
from bnce.losses.chunk_nce import NCE, all_pairs_nce, chunk_loss_by_position, chunk_nce
from bnce.losses.chunk_softmax import chunk_softmax, chunk_softmax_each
from bnce.losses.merged_chunk_nce import merged_chunk_loss
from tests.losses import reference

EPS = torch.finfo(torch.float32).eps
MakeBatch = Callable[..., OutputBatch]
chunk_softmax_module = importlib.import_module("bnce.losses.chunk_softmax")


def chunk_nce_by_position(batch: OutputBatch) -> torch.Tensor:
    """Compute it as on a GPU, with a column for every position."""
    return chunk_loss_by_position(batch, NCE)


def chunk_softmax_by_position(batch: OutputBatch) -> torch.Tensor:
    return chunk_loss_by_position(batch, chunk_softmax_module._rule(batch.penalty))


FORMS: dict[str, list[Callable[[OutputBatch], torch.Tensor]]] = {
    "chunk-bnce": [
        chunk_nce,
        lambda batch: merged_chunk_loss(batch, NCE.merged),
        chunk_nce_by_position,
        all_pairs_nce,
    ],
    "chunk-softmax": [chunk_softmax, chunk_softmax_by_position, lambda batch: chunk_softmax_each(batch).sum()],
}


def expected_loss(loss: str, batch: OutputBatch) -> torch.Tensor:
    probs_V = batch.noise.log_probs_V.double().exp()
    given = batch.hidden_TBD, batch.weight_VD, batch.bias_V, batch.target_TB, probs_V, batch.log_z
    if loss == "chunk-bnce":
        return reference.chunk_nce_loss(*given)
    return reference.chunk_softmax_loss(*given, batch.penalty)


@pytest.mark.parametrize(("T", "B"), [(1, 2), (3, 7), (4, 5), (2, 17)])
@pytest.mark.parametrize("max_scores", [2**20, 40])
@pytest.mark.parametrize(("loss", "penalty"), [("chunk-bnce", 0.0), ("chunk-softmax", 0.0), ("chunk-softmax", 0.3)])
def test_equals_the_reference_with_its_gradients(
    make_batch: MakeBatch, T: int, B: int, max_scores: int, loss: str, penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MAX_SCORES, "cpu", max_scores)
    batch = dataclasses.replace(make_batch(T, B), penalty=penalty)
    leaves = [batch.hidden_TBD, batch.weight_VD, batch.bias_V, batch.log_z]
    expected = expected_loss(loss, batch)
    expected_grads = torch.autograd.grad(expected, leaves)
    for form in FORMS[loss]:
        found_loss = form(batch)
        # A sum of some T²B² terms of the size of one, each with the rounding of a dot product.
        assert abs(float(found_loss.detach()) - float(expected.detach())) <= 64 * EPS * float(expected.detach())
        for found, wanted in zip(torch.autograd.grad(found_loss, leaves), expected_grads, strict=True):
            scale = float(wanted.norm())
            if loss == "chunk-softmax":
                scale = max(scale, float(expected.detach()))
            torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-4, atol=64 * EPS * scale)


def test_one_step_of_a_chunk_is_plain_batch_nce(make_batch: MakeBatch) -> None:
    batch = make_batch(1, 7)
    torch.testing.assert_close(chunk_nce(batch), batch_nce(batch))


@pytest.mark.parametrize("loss", FORMS)
def test_own_stream_is_left_out_by_position_not_by_word(make_batch: MakeBatch, loss: str) -> None:
    """All targets are one word, and still every position has (B − 1)·T noise words."""
    batch = dataclasses.replace(make_batch(3, 4), penalty=0.2)
    everywhere = dataclasses.replace(batch, target_TB=torch.full_like(batch.target_TB, 2))
    found = FORMS[loss][0](everywhere).double()
    torch.testing.assert_close(found, expected_loss(loss, everywhere), rtol=1e-5, atol=0)


@pytest.mark.parametrize("form", [chunk_softmax, chunk_softmax_by_position])
def test_a_target_that_dominates_leaves_the_noise_to_be_seen(
    form: Callable[[OutputBatch], torch.Tensor], make_batch: MakeBatch
) -> None:
    """A target of 60 nats more than the noise: taken out of a sum that it is in, nothing would be left."""
    target_TB = torch.tensor([[3, 1, 2], [3, 2, 1]])
    batch = dataclasses.replace(make_batch(2, 3), penalty=0.1, target_TB=target_TB)
    with torch.no_grad():
        batch.bias_V[3] += 60.0
    torch.testing.assert_close(form(batch).double(), expected_loss("chunk-softmax", batch), rtol=1e-5, atol=0)


@pytest.mark.parametrize("form", [chunk_nce, chunk_nce_by_position, all_pairs_nce, *FORMS["chunk-softmax"]])
def test_masked_positions_are_neither_noise_nor_data(
    form: Callable[[OutputBatch], torch.Tensor], make_batch: MakeBatch
) -> None:
    batch = dataclasses.replace(make_batch(2, 4), penalty=0.1)
    kept = dataclasses.replace(batch, hidden_TBD=batch.hidden_TBD[:, :3], target_TB=batch.target_TB[:, :3].contiguous())
    masked = dataclasses.replace(batch, valid_TB=torch.tensor([[True, True, True, False]] * 2))
    torch.testing.assert_close(form(masked), form(kept), rtol=1e-5, atol=0)
    gradient = torch.autograd.grad(form(masked), batch.hidden_TBD)[0]
    assert gradient.isfinite().all()
    assert not gradient[:, 3].any()
    for few in ([True, False, False, False], [False] * 4):  # nothing has noise
        alone = dataclasses.replace(batch, valid_TB=torch.tensor([few, few]))
        assert float(form(alone).detach()) == 0.0
        assert not torch.autograd.grad(form(alone), batch.hidden_TBD)[0].any()


@pytest.mark.parametrize(("B", "told"), [(1, "the batch has 1: use 2 or more"), (4, "num_noise is 2: set it to 0")])
def test_refuses_one_stream_and_drawn_noise(make_batch: MakeBatch, B: int, told: str) -> None:
    with pytest.raises(UserError, match=told):
        chunk_nce(make_batch(3, B, 2))


def test_without_a_penalty_nothing_promises_the_constant() -> None:
    counts = torch.ones(30)
    assert layer_of(4, 30, counts, loss="chunk-softmax").normalises
    assert not layer_of(4, 30, counts, loss="chunk-softmax", penalty=0.0).normalises
