"""Row kernels against the plain row functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from making import optimiser_of
from torch import Tensor

from bnce import rows as plain
from bnce.kernels import rows as fast
from bnce.optimisers.exchange import number
from bnce.optimisers.optimiser import build_optimiser
from tests.optimisers import tiny

V, N = 9, 40
Check = Callable[[Tensor, Tensor, Tensor], None]


@pytest.fixture(params=[(), (5,), (1100,), (2, 3)], ids=["vector", "narrow", "wider than a block", "rows of matrices"])
def values(request: pytest.FixtureRequest, device: torch.device) -> Tensor:
    return torch.randn(N, *request.param, device=device)


def test_merge_adds_up_equal_rows_at_one_place_each(values: Tensor, no_worse: Check) -> None:
    words = torch.randint(0, V, (N,), device=values.device)
    found_words, merged = fast.merge(words, values, V)
    zeros = torch.zeros(V, *values.shape[1:], device=values.device)
    exact = zeros.double().index_add(0, words, values.double())
    no_worse(zeros.index_add(0, found_words, merged), zeros.index_add(0, words, values), exact)
    touched = merged.reshape(N, -1).any(1)
    assert int(touched.sum()) == len(words.unique()), "one place a word holds its sum, the others zeros"


def test_adagrad_equals_the_plain_step(values: Tensor, no_worse: Check) -> None:
    device = values.device
    words = torch.randint(0, V - 2, (N,), device=device)
    table, accumulator = torch.randn(V, *values.shape[1:], device=device), torch.rand(V, device=device)
    rate, clip = torch.tensor(0.2, device=device), torch.tensor(0.5, device=device)
    results = []
    for functions, dtype in ((fast, torch.float32), (plain, torch.float32), (plain, torch.float64)):
        new_table, new_accumulator = table.to(dtype, copy=True), accumulator.to(dtype, copy=True)
        if functions is fast:
            merged = fast.merge(words, values, V)
        else:
            merged = plain.merge(words, values.to(dtype))
        functions.adagrad_(new_table, new_accumulator, *merged, rate.to(dtype), clip.to(dtype))
        results.append((new_table, new_accumulator))
    for part in range(2):
        no_worse(*(result[part] for result in results))
    assert torch.equal(results[0][0][V - 2 :], table[V - 2 :]), "rows that no word touches stay as they are"


def test_dense_adagrad_equals_the_plain_step(device: torch.device, no_worse: Check) -> None:
    table, grad = torch.randn(V, 5, device=device), torch.randn(V, 5, device=device)
    rate, clip = torch.tensor(0.2, device=device), torch.tensor(0.5, device=device)
    results = []
    for functions, dtype in ((fast, torch.float32), (plain, torch.float32), (plain, torch.float64)):
        new_table, accumulator = table.to(dtype, copy=True), torch.ones(V, dtype=dtype, device=device)
        functions.adagrad_(new_table, accumulator, None, grad.to(dtype), rate.to(dtype), clip.to(dtype))
        results.append(new_table)
    no_worse(*results)


@pytest.mark.parametrize("is_dense", [False, True])
def test_adam_equals_the_plain_step(device: torch.device, no_worse: Check, is_dense: bool) -> None:
    words = torch.randint(0, V - 2, (N,), device=device)
    values = torch.randn(V if is_dense else N, 5, device=device)
    start = torch.randn(V, 5, device=device), torch.rand(V, device=device)
    last = torch.randint(0, 9, (V,), dtype=torch.int32, device=device)
    results = []
    for functions, dtype in ((fast, torch.float32), (plain, torch.float32), (plain, torch.float64)):
        table, square = (tensor.to(dtype, copy=True) for tensor in start)
        moments = square, last.clone(), torch.tensor(9, device=device)
        scales = torch.tensor(0.2, dtype=dtype, device=device), torch.tensor(0.5, dtype=dtype, device=device)
        if is_dense:
            functions.adam_(table, *moments, None, values.to(dtype), *scales, 0.9, 1e-8)
        elif functions is fast:
            merged = fast.merge(words, values, V)
            fast.adam_(table, *moments, *merged, *scales, 0.9, 1e-8)
        else:
            plain.adam_(table, *moments, *plain.merge(words, values.to(dtype)), *scales, 0.9, 1e-8)
        touched = torch.ones(V, dtype=torch.bool, device=device) if is_dense else torch.bincount(words, minlength=V) > 0
        assert torch.equal(moments[1], torch.where(touched, 9, last).int())
        results.append((table, square))
    for part in range(2):
        no_worse(*(result[part] for result in results))


@pytest.mark.parametrize("loss", ["bnce", "softmax"])
def test_row_wise_adam_of_the_trainer_equals_the_plain_one(device: torch.device, loss: str) -> None:
    models = []
    for deterministic in (False, True):  # which the plain functions are
        model = tiny.build(loss).to(device)
        optimiser = build_optimiser(model, optimiser_of("rowwise-adam"), deterministic=deterministic)
        for step in range(4):
            tiny.compute_gradients(model, step, num_words=tiny.V // (2 + step % 2))
            tiny.step(optimiser)
        models.append(model)
    for found, expected in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_different_words_get_different_numbers(device: torch.device) -> None:
    words = torch.randint(0, V, (N,), device=device)
    word_K, place_N = number(words, V, V)
    assert word_K.shape == (V,)
    assert torch.equal(word_K[place_N], words)
    assert len(place_N.unique()) == len(words.unique())
    again = number(words, V, V)
    assert all(torch.equal(found, expected) for found, expected in zip((word_K, place_N), again, strict=True))
