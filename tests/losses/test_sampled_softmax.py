"""Sampled softmax against its float64 reference with the same drawn words, and how these are drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from making import layer_of

import bnce
from bnce import OutputBatch, UserError
from bnce.losses.blocked import MAX_SCORES
from bnce.losses.sampled_softmax import (
    first_of_each,
    log_expected,
    sampled_softmax,
    sampled_softmax_,
    sampled_softmax_each,
)
from tests.losses import by_equation

EPS = torch.finfo(torch.float32).eps
MakeBatch = Callable[..., OutputBatch]
FORMS = [sampled_softmax, lambda batch: sampled_softmax_each(batch).sum()]


def seeded(function: Callable[[OutputBatch], torch.Tensor], batch: OutputBatch) -> torch.Tensor:
    torch.manual_seed(7)
    return function(batch)


def without_holes(batch: OutputBatch) -> OutputBatch:
    """Put the positions that count in one step, for the reference; the drawn words are the same."""
    if batch.valid_TB is None:
        return batch
    kept = batch.hidden_TBD[batch.valid_TB].unsqueeze(0), batch.target_TB[batch.valid_TB].unsqueeze(0)
    return dataclasses.replace(batch, hidden_TBD=kept[0], target_TB=kept[1], valid_TB=None)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("T", "B", "K"), [(1, 1, 1), (3, 5, 4), (2, 7, 30)])
@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("max_scores", [1, 2**20])
def test_equals_the_reference_with_its_gradients(
    make_batch: MakeBatch,
    form: Callable[[OutputBatch], torch.Tensor],
    T: int,
    B: int,
    K: int,
    distinct: bool,
    sparse: bool,
    max_scores: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MAX_SCORES, "cpu", max_scores)
    valid_TB = None if T == 1 else torch.arange(T * B).reshape(T, B) % 3 != 1
    batch = make_batch(T, B, K, sparse=sparse, valid_TB=valid_TB)
    batch = dataclasses.replace(batch, tries=batch.noise.tries(K) if distinct else None)
    leaves = [batch.hidden_TBD, batch.weight_VD, batch.bias_V]
    expected, loss = seeded(by_equation.sampled_softmax, without_holes(batch)), seeded(form, batch)
    scale = max(1.0, float(expected.detach()))
    assert abs(float(loss.detach()) - float(expected.detach())) <= 64 * EPS * scale
    expected_grads = torch.autograd.grad(3 * expected, leaves)
    for found, wanted in zip(torch.autograd.grad(3 * loss, leaves), expected_grads, strict=True):
        found = found.to_dense() if found.is_sparse else found
        torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-4, atol=64 * EPS * scale)


def test_a_position_whose_only_drawn_word_is_its_target_has_no_loss(make_batch: MakeBatch) -> None:
    batch = make_batch(2, 3, 1, V=1, num_target_words=1)
    loss = sampled_softmax(dataclasses.replace(batch, tries=batch.noise.tries(1)))
    assert float(loss.detach()) == 0.0
    assert not torch.autograd.grad(loss, batch.hidden_TBD)[0].any()


def test_words_are_drawn_once_for_the_chunk(make_batch: MakeBatch) -> None:
    shapes: list[tuple[int, ...]] = []
    batch = make_batch(2, 3, 5)
    sample = batch.noise.sample
    batch.noise.sample = lambda shape: shapes.append(tuple(shape)) or sample(shape)
    sampled_softmax(batch)
    tries = batch.noise.tries(4)
    sampled_softmax(dataclasses.replace(batch, tries=tries))
    assert shapes == [(5,), (tries.num_draws,)]


def test_different_words_in_the_order_in_which_they_came() -> None:
    drawn_K = torch.tensor([7, 3, 7, 0, 3, 9, 7])
    words_C, filled_C = first_of_each(drawn_K, 6)
    assert words_C[:4].tolist() == [7, 3, 0, 9]
    assert filled_C.tolist() == [True, True, True, True, False, False]
    assert set(words_C[4:].tolist()) <= set(drawn_K.tolist()), "a row that is read anyway"
    assert first_of_each(drawn_K, 2)[0].tolist() == [7, 3], "more than there is room for"


def test_the_expected_count_is_that_of_the_draws() -> None:
    """Of 40 draws from Zipf's law; a thousand times, and the most frequent word is nearly always among them."""
    noise, num_rounds = bnce.noise.log_uniform(30), 1000
    tries = noise.tries(12)
    torch.manual_seed(3)
    counts_V = torch.zeros(30)
    for _ in range(num_rounds):
        word_C, filled_C = first_of_each(noise.sample((tries.num_draws,)), tries.max_distinct)
        counts_V.index_add_(0, word_C, filled_C.float())
    expected_V = log_expected(noise, torch.arange(30), 12, tries).exp()
    deviation_V = (expected_V * (1 - expected_V) / num_rounds).sqrt()
    assert ((counts_V / num_rounds - expected_V).abs() <= 4 * deviation_V + 1e-6).all()
    assert float(expected_V.sum()) == pytest.approx(12, rel=0.05)


def test_samplers_are_for_sampled_softmax() -> None:
    counts = torch.arange(30, 0, -1)
    layer = layer_of(4, 30, counts, "sampled-softmax", num_noise=8, replacement=False)
    assert layer.tries == layer.noise.tries(8)
    assert not layer.normalises
    assert layer_of(4, 30, counts, "sampled-softmax", num_noise=8).tries is None


def test_narrow_products_have_columns_that_tensor_cores_like(
    make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five drawn words become eight columns, of which three are no words and have no part in anything."""
    widths: list[int] = []

    def watched(product_RC: torch.Tensor, *rest: torch.Tensor, **options: bool) -> tuple[torch.Tensor, torch.Tensor]:
        widths.append(product_RC.shape[1])
        return sampled_softmax_(product_RC, *rest, **options)

    monkeypatch.setattr("bnce.losses.sampled_softmax.sampled_softmax_", watched)

    def results() -> list[torch.Tensor]:
        batch = make_batch(2, 3, 5)
        torch.manual_seed(7)
        loss = sampled_softmax(batch)
        return [loss, *torch.autograd.grad(loss, [batch.hidden_TBD, batch.weight_VD, batch.bias_V])]

    exact = results()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = results()
    assert widths == [5, 8]
    for found, expected in zip(rounded, exact, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=2**-7 * float(expected.detach().abs().max()))


def test_no_words_are_refused(make_batch: MakeBatch) -> None:
    with pytest.raises(UserError, match="draws words, but num_noise is 0: set it to 1 or more"):
        sampled_softmax(make_batch(1, 2, 0))
