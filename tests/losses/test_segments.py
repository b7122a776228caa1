"""Sums over rows that stand together: both ways to add them up, gradients of both directions, and rows of nobody."""

from __future__ import annotations

import pytest
import torch

from bnce.losses.segments import add_up, reduce_segments, repeat, sum_segments

OWNER = torch.tensor([0, 0, 2, 2, 2, 3, 3, 3, 3])
EDGE = torch.tensor([0, 2, 2, 5, 7])  # the last two rows are nobody's


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_sums_are_those_of_index_add(shape: tuple[int, ...]) -> None:
    value = torch.randn(9, *shape, generator=torch.Generator().manual_seed(1))
    value[7:] = 0
    expected = torch.stack([value[owner == OWNER].sum(0) for owner in range(4)])
    torch.testing.assert_close(sum_segments(value, OWNER, EDGE), expected)
    torch.testing.assert_close(reduce_segments(value, EDGE), expected)  # what a GPU does
    total = torch.ones_like(expected)
    torch.testing.assert_close(sum_segments(value, OWNER, EDGE, total), expected + 1)


def test_both_directions_have_gradients_of_any_order() -> None:
    value_M = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    edge = torch.tensor([0, 2, 2, 5, 9])
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda value: repeat(value, OWNER, edge).square(), value_M)
        assert check(lambda value: add_up(value, OWNER, edge).square(), repeat(value_M, OWNER, edge))


def test_nothing_adds_up_to_nothing() -> None:
    none = torch.zeros(0, dtype=torch.long)
    assert add_up(torch.zeros(0, 3), none, torch.zeros(3, dtype=torch.long)).tolist() == [[0.0] * 3] * 2
