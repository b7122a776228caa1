"""BlackOut against its float64 reference with the same drawn words, and where its numbers meet their limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from bnce import OutputBatch, noise
from bnce.losses.blackout import blackout, blackout_each
from bnce.losses.blocked import MAX_SCORES
from tests.losses import by_equation

EPS = torch.finfo(torch.float32).eps
MakeBatch = Callable[..., OutputBatch]
FORMS = [blackout, lambda batch: blackout_each(batch).sum()]


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
    expected = by_equation.blackout(batch)
    torch.manual_seed(7)
    loss = form(batch)
    scale = max(1.0, float(expected.detach()))
    assert abs(float(loss.detach()) - float(expected.detach())) <= 64 * EPS * scale
    expected_grads = torch.autograd.grad(3 * expected, leaves)
    for found, wanted in zip(torch.autograd.grad(3 * loss, leaves), expected_grads, strict=True):
        found = found.to_dense() if found.is_sparse else found
        torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-4, atol=64 * EPS * scale)


@pytest.mark.parametrize("form", FORMS)
def test_masked_positions_have_no_part(make_batch: MakeBatch, form: Callable[[OutputBatch], torch.Tensor]) -> None:
    valid_TB = torch.tensor([[True, False, True], [False, False, False]])
    batch = make_batch(2, 3, 8, valid_TB=valid_TB)
    torch.manual_seed(7)
    (gradient_TBD,) = torch.autograd.grad(form(batch), batch.hidden_TBD)
    assert (gradient_TBD != 0).any(2).tolist() == valid_TB.tolist()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lead", [60.0, -60.0])
def test_a_drawn_word_that_is_all_or_nothing_stays_finite(
    make_batch: MakeBatch, form: Callable[[OutputBatch], torch.Tensor], lead: float
) -> None:
    """Without the bound on p, ln(1 − p) of a drawn word 60 nats above the target would be infinite."""
    batch = make_batch(1, 2, 5, num_target_words=1)
    batch.noise = noise.uniform(11)
    with torch.no_grad():
        batch.bias_V[1:] += lead
    loss = form(batch)
    gradients = torch.autograd.grad(loss, [batch.hidden_TBD, batch.weight_VD, batch.bias_V])
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_a_position_whose_only_drawn_word_is_its_target_has_no_loss(make_batch: MakeBatch) -> None:
    batch = make_batch(2, 3, 1, V=1, num_target_words=1)
    loss = blackout(batch)
    assert float(loss.detach()) == 0.0
    assert not torch.autograd.grad(loss, batch.hidden_TBD)[0].any()
