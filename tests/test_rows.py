"""Row tables: sparse gradients equal dense ones, merging adds up, and steps touch nothing but their rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bnce import OutputLayer, clip_grad_norm_, rows

V, D = 9, 3
CLIP = torch.tensor(1.0)
RATE = torch.tensor(0.25)
EPS = torch.finfo(torch.float32).eps

word_lists = st.lists(st.integers(0, V - 1), max_size=30)


def table(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def values_for(words: list[int], *shape: int) -> Tensor:
    """Make values whose sums are exact, so that equality is equality."""
    generator = torch.Generator().manual_seed(len(words))
    return torch.randint(-50, 50, (len(words), *shape), generator=generator).float()


def dense_sum(words: list[int], values: Tensor) -> Tensor:
    total = torch.zeros(V, *values.shape[1:])
    for word, value in zip(words, values, strict=True):
        total[word] += value
    return total


@pytest.mark.parametrize("shape", [(V,), (V, D), (V, 2, D)])
@pytest.mark.parametrize(
    "words",
    [
        torch.tensor(4),
        torch.tensor([4]),
        torch.tensor([8, 0, 8, 8]),
        torch.tensor([[1, 2, 1], [0, 2, 2]]),
        torch.zeros(0).long(),
    ],
    ids=["scalar", "one", "repeated", "matrix", "none"],
)
def test_gather_is_indexing_with_a_sparse_gradient(shape: tuple[int, ...], words: Tensor) -> None:
    sparse_table, dense_table, plain_table = (table(*shape).requires_grad_() for _ in range(3))
    upstream = torch.randn((*words.shape, *shape[1:]), generator=torch.Generator().manual_seed(2))
    found = rows.gather(sparse_table, words)
    dense = rows.gather(dense_table, words, sparse=False)
    expected = plain_table[words]
    assert torch.equal(found, expected)
    assert torch.equal(dense, expected)
    for result in (found, dense, expected):
        result.backward(upstream)
    assert sparse_table.grad.is_sparse
    assert sparse_table.grad._nnz() == words.numel()
    assert not dense_table.grad.is_sparse
    torch.testing.assert_close(sparse_table.grad.to_dense(), plain_table.grad, rtol=2 * EPS, atol=2 * EPS)
    torch.testing.assert_close(dense_table.grad, plain_table.grad, rtol=2 * EPS, atol=2 * EPS)


def test_two_gathers_of_one_table_add_up() -> None:
    """NCE reads targets and noise words from the same table."""
    weight_VD = table(V, D).requires_grad_()
    loss = rows.gather(weight_VD, torch.tensor([1, 1])).sum() + 2 * rows.gather(weight_VD, torch.tensor([1, 5])).sum()
    loss.backward()
    words_N, grad_ND = rows.merge(*rows.row_gradients(weight_VD.grad))
    assert words_N.tolist() == [1, 5]
    expected = torch.zeros(V, D)
    expected[1], expected[5] = 4.0, 2.0
    assert torch.equal(torch.zeros(V, D).index_add_(0, words_N, grad_ND), expected)


def test_a_table_that_needs_no_gradient_is_only_read() -> None:
    assert not rows.gather(table(V, D), torch.tensor([1])).requires_grad
    with torch.no_grad():
        assert not rows.gather(table(V, D).requires_grad_(), torch.tensor([1])).requires_grad


def test_size_of_the_table_does_not_matter() -> None:
    num_rows = 5_000_000
    big = torch.zeros(num_rows, 1).requires_grad_()
    rows.gather(big, torch.tensor([3, num_rows - 1, 3])).sum().backward()
    assert big.grad.is_sparse
    assert big.grad.shape == (num_rows, 1)
    assert big.grad._nnz() == 3
    words_N, grad_ND = rows.merge(*rows.row_gradients(big.grad))
    assert words_N.shape == (2,)
    assert grad_ND.shape == (2, 1)
    with torch.no_grad():
        rows.sgd_(big, words_N, grad_ND, RATE, CLIP)
    assert big[3].item() == -0.5
    assert big[num_rows - 1].item() == -0.25
    assert torch.count_nonzero(big).item() == 2


@given(word_lists)
def test_merge_adds_up_equal_words(words: list[int]) -> None:
    for shape in ((), (D,)):
        values = values_for(words, *shape)
        words_N = torch.tensor(words, dtype=torch.long)
        unique_U, sum_U = rows.merge(words_N, values)
        assert unique_U.tolist() == sorted(set(words))
        assert torch.equal(sum_U, dense_sum(words, values)[unique_U])
        unique_N, merged = rows.merge(words_N, values, len(words))
        assert unique_N.shape == (len(words),)
        assert merged.shape == values.shape
        num_unique = len(set(words))
        assert unique_N[:num_unique].tolist() == sorted(set(words))
        assert torch.equal(merged[:num_unique], dense_sum(words, values)[sorted(set(words))])
        assert not merged[num_unique:].any(), "the places left over add nothing"
        assert set(unique_N[num_unique:].tolist()) <= {max(words, default=0)}


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equal_rows_of_two_bytes_do_not_stop_growing(sparse: bool, dtype: torch.dtype) -> None:
    """The rows of a frequent word are added up in float32, and rounded once."""
    counts = 1.0 / torch.arange(1, 1001)
    target_TB = torch.multinomial(counts, 8000, replacement=True, generator=torch.Generator().manual_seed(1)).view(
        20, 400
    )
    grads = []
    for format_ in (torch.float32, dtype):
        torch.manual_seed(1)
        layer = OutputLayer(16, len(counts), counts, sparse=sparse, loss="bnce").to(format_)
        with torch.no_grad():
            layer.bias += 3.0  # all gradients of a word have one sign
        layer(torch.randn(20, 400, 16).to(format_), target_TB).backward()
        clip_grad_norm_(layer.parameters(), 1e9)
        grads.append(layer.bias.grad.to_dense().float() if sparse else layer.bias.grad.float())
    torch.testing.assert_close(grads[1], grads[0], rtol=0.06, atol=0.01)


@pytest.mark.parametrize("shape", [(V, D), (V,)])  # PyTorch's own sum is right of rows, and stops of numbers
def test_equal_rows_that_are_read_alone_do_not_stop_growing(shape: tuple[int, ...]) -> None:
    table = torch.zeros(shape, dtype=torch.bfloat16, requires_grad=True)
    for sparse in (True, False):
        table.grad = None
        rows.gather(table, torch.full((1000,), 4), sparse=sparse).sum().backward()
        grad = rows.merge(*rows.row_gradients(table.grad))[1][0] if sparse else table.grad[4]
        assert (grad == 1000.0).all()


@given(word_lists)
def test_sgd_equals_dense_and_leaves_other_rows_alone(words: list[int]) -> None:
    for shape in ((V,), (V, D)):
        before, values = table(*shape), values_for(words, *shape[1:])
        expected = before - RATE * dense_sum(words, values)
        found = before.clone()
        rows.sgd_(found, *rows.merge(torch.tensor(words, dtype=torch.long), values), RATE, CLIP)
        torch.testing.assert_close(found, expected, rtol=EPS, atol=EPS * 100)
        untouched = [word for word in range(V) if word not in words]
        assert torch.equal(found[untouched], before[untouched])


def dense_adagrad(before: Tensor, accumulator_V: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Row-wise Adagrad written out, one row at a time, in float64."""
    after, accumulated = before.double().clone(), accumulator_V.double().clone()
    for row in range(V):
        gradient = grad[row].double()
        if not gradient.any():
            continue
        accumulated[row] += gradient.square().mean()
        after[row] -= float(RATE) * gradient / (accumulated[row].sqrt() + 1e-8)
    return after, accumulated


@given(word_lists)
def test_adagrad_equals_dense_and_leaves_other_rows_alone(words: list[int]) -> None:
    for shape in ((V,), (V, D)):
        values = values_for(words, *shape[1:])
        grad = dense_sum(words, values)
        before, accumulator_V = table(*shape), table(V).square()
        expected, expected_accumulator_V = dense_adagrad(before, accumulator_V, grad)
        found, found_accumulator_V = before.clone(), accumulator_V.clone()
        rows.adagrad_(
            found, found_accumulator_V, *rows.merge(torch.tensor(words, dtype=torch.long), values), RATE, CLIP
        )
        torch.testing.assert_close(found.double(), expected, rtol=8 * EPS, atol=8 * EPS)
        torch.testing.assert_close(found_accumulator_V.double(), expected_accumulator_V, rtol=8 * EPS, atol=0)
        untouched = [word for word in range(V) if word not in words]
        assert torch.equal(found[untouched], before[untouched])
        assert torch.equal(found_accumulator_V[untouched], accumulator_V[untouched])

        all_rows, all_accumulators_V = before.clone(), accumulator_V.clone()
        rows.adagrad_(all_rows, all_accumulators_V, None, grad, RATE, CLIP)
        torch.testing.assert_close(all_rows.double(), expected, rtol=8 * EPS, atol=8 * EPS)
        torch.testing.assert_close(all_accumulators_V.double(), expected_accumulator_V, rtol=8 * EPS, atol=0)


def test_adagrad_rows_without_history_or_gradient_stand_still() -> None:
    """An accumulator of zero under a gradient of zero must not become NaN."""
    found = table(V, D)
    rows.adagrad_(found, torch.zeros(V), torch.tensor([2]), torch.zeros(1, D), RATE, CLIP)
    rows.adagrad_(found, torch.zeros(V), None, torch.zeros(V, D), RATE, CLIP)
    assert torch.equal(found, table(V, D))
