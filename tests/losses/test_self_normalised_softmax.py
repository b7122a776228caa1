"""The softmax with a penalty on ln Z(context), against its float64 reference, and what the penalty holds."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

import pytest
import torch

from bnce import OutputBatch
from bnce.losses.self_normalised_softmax import self_normalised_softmax, self_normalised_softmax_each
from bnce.losses.softmax import chunked_cross_entropy, softmax
from tests.losses import reference

EPS = torch.finfo(torch.float32).eps
MakeBatch = Callable[..., OutputBatch]
FORMS = [self_normalised_softmax, lambda batch: self_normalised_softmax_each(batch).sum()]
softmax_file = sys.modules[chunked_cross_entropy.__module__]


def expected_loss(batch: OutputBatch) -> torch.Tensor:
    kept = torch.ones_like(batch.target_TB, dtype=torch.bool) if batch.valid_TB is None else batch.valid_TB
    hidden_ND, target_N = batch.hidden_TBD[kept], batch.target_TB[kept]
    return reference.self_normalised_softmax_loss(
        hidden_ND, batch.weight_VD, batch.bias_V, target_N, batch.log_z, batch.penalty
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("max_logits", [1, 40, 2**20])
@pytest.mark.parametrize("penalty", [0.0, 0.3])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_reference_with_its_gradients(
    make_batch: MakeBatch,
    form: Callable[[OutputBatch], torch.Tensor],
    max_logits: int,
    penalty: float,
    masked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(softmax_file, "MAX_LOGITS", {"cpu": max_logits})
    valid_TB = torch.tensor([[True, False, True]] * 3) if masked else None
    batch = dataclasses.replace(make_batch(3, 3, valid_TB=valid_TB, log_z=1.0), penalty=penalty)
    leaves = [batch.hidden_TBD, batch.weight_VD, batch.bias_V, batch.log_z]
    expected, loss = expected_loss(batch), form(batch)
    scale = float(expected.detach())
    assert abs(float(loss.detach()) - scale) <= 64 * EPS * scale
    expected_grads = torch.autograd.grad(3 * expected, leaves)
    for found, wanted in zip(torch.autograd.grad(3 * loss, leaves), expected_grads, strict=True):
        torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-5, atol=64 * EPS * scale)


def test_without_a_penalty_it_is_the_softmax(make_batch: MakeBatch) -> None:
    batch = make_batch(2, 3)
    assert torch.equal(self_normalised_softmax(batch), softmax(batch))
    assert self_normalised_softmax(dataclasses.replace(batch, penalty=0.1)) > softmax(batch)


def test_an_excess_that_turns_the_gradient_around_is_no_division_by_zero(make_batch: MakeBatch) -> None:
    """At ln Z(context) = ln Z − 1 / (2·λ) the softmax has no pull: only the target's own gradient is left."""
    batch = dataclasses.replace(make_batch(1, 2), penalty=0.5)
    with torch.no_grad():
        batch.hidden_TBD.zero_()
        batch.bias_V.sub_(batch.bias_V.logsumexp(0) - batch.log_z + 1.0)
    (bias_grad_V,) = torch.autograd.grad(self_normalised_softmax(batch), batch.bias_V)
    expected_V = -torch.bincount(batch.target_TB.flatten(), minlength=len(bias_grad_V)).float()
    torch.testing.assert_close(bias_grad_V, expected_V, rtol=0, atol=1e-5)
