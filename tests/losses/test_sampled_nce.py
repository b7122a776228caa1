"""NCE and S-NCE against the paper's equations in float64, with the same drawn words.

The tolerance is that of `test_batch_nce.py`: EPS times the magnitudes of what all the scores are summed from.

Legend: T time steps, B streams, K drawn words, D hidden.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bnce import LOSSES, OutputBatch, UserError
from bnce.losses import compute
from tests.losses import reference

EPS = torch.finfo(torch.float32).eps
PARAMETERS = ("hidden_TBD", "weight_VD", "bias_V", "log_z")
SHAPES = [(1, 1, 1), (1, 2, 3), (3, 5, 4), (2, 7, 12)]


def draw(batch: OutputBatch, name: str) -> Tensor:
    """Draw the words (T, B, K) that the next call of the loss will draw."""
    T, B = batch.target_TB.shape
    torch.manual_seed(7)
    shape = (T, B, batch.num_noise) if name == "nce" else (T, 1, batch.num_noise)
    noise_TBK = batch.noise.sample(shape).expand(T, B, batch.num_noise)
    torch.manual_seed(7)
    return noise_TBK


def reference_loss(batch: OutputBatch, noise_TBK: Tensor) -> Tensor:
    valid_TB = torch.ones_like(batch.target_TB, dtype=torch.bool) if batch.valid_TB is None else batch.valid_TB
    return reference.sampled_nce_loss(
        batch.hidden_TBD[valid_TB],
        batch.weight_VD,
        batch.bias_V,
        batch.target_TB[valid_TB],
        noise_TBK[valid_TB],
        batch.noise.log_probs_V.double().exp(),
        batch.log_z,
    )


@torch.no_grad()
def magnitude(batch: OutputBatch, noise_TBK: Tensor) -> float:
    """Sum the magnitudes of what the scores of all positions are summed from."""
    word_TBM = torch.cat([batch.target_TB.unsqueeze(2), noise_TBK], dim=2)
    product_TBM = (batch.weight_VD.abs()[word_TBM] @ batch.hidden_TBD.abs().unsqueeze(3)).squeeze(3)
    constants_TBM = batch.bias_V.abs()[word_TBM] + batch.noise.log_prob(word_TBM).abs() + batch.log_z.abs()
    return float((product_TBM + constants_TBM + math.log(batch.num_noise)).sum())


def assert_equal_to_reference(batch: OutputBatch, name: str) -> None:
    noise_TBK = draw(batch, name)
    loss = compute(LOSSES[name]()).total(batch)
    loss.backward()
    exact = dataclasses.replace(
        batch, **{key: getattr(batch, key).detach().double().requires_grad_() for key in PARAMETERS}
    )
    expected = reference_loss(exact, noise_TBK)
    expected.backward()
    allowed = EPS * magnitude(batch, noise_TBK)
    assert abs(loss.item() - expected.item()) <= allowed
    largest = max(1.0, float(batch.hidden_TBD.detach().abs().max()), float(batch.weight_VD.detach().abs().max()))
    for key in PARAMETERS:
        found = getattr(batch, key).grad
        found = found.to_dense() if found.is_sparse else found
        assert float((found.double() - getattr(exact, key).grad).abs().max()) <= allowed * largest, key


@pytest.mark.parametrize("name", ["nce", "snce"])
@pytest.mark.parametrize(("T", "B", "K"), SHAPES)
@pytest.mark.parametrize("sparse", [False, True])
def test_equals_reference(
    make_batch: Callable[..., OutputBatch], name: str, T: int, B: int, K: int, sparse: bool
) -> None:
    assert_equal_to_reference(make_batch(T, B, K, sparse=sparse), name)


@pytest.mark.parametrize("name", ["nce", "snce"])
def test_masked_positions_have_no_part(make_batch: Callable[..., OutputBatch], name: str) -> None:
    valid_TB = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    batch = make_batch(3, 3, 4, valid_TB=valid_TB)
    assert_equal_to_reference(batch, name)
    assert not batch.hidden_TBD.grad[~valid_TB].any()


def test_nce_draws_for_each_position_and_snce_for_each_step(make_batch: Callable[..., OutputBatch]) -> None:
    shapes = []
    batch = make_batch(2, 3, 5)
    sample = batch.noise.sample
    batch.noise.sample = lambda shape: shapes.append(tuple(shape)) or sample(shape)
    compute(LOSSES["nce"]()).total(batch)
    compute(LOSSES["snce"]()).total(batch)
    assert shapes == [(2, 3, 5), (2, 5)]


@pytest.mark.parametrize(("name", "written"), [("nce", "NCE"), ("snce", "S-NCE")])
def test_no_noise_words_are_refused(make_batch: Callable[..., OutputBatch], name: str, written: str) -> None:
    with pytest.raises(UserError) as caught:
        compute(LOSSES[name]()).total(make_batch(1, 3, 0))
    assert str(caught.value) == (
        f"{written} needs noise words, but num_noise is 0: set it to 1 or more (the paper uses 100)."
    )
