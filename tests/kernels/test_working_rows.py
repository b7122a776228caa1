"""The numbers that a step's words get, and the rows that come and go by them, against plain functions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bnce import rows as plain
from bnce.kernels import rows as fast
from bnce.kernels.working_rows import number
from bnce.machine.processes import World
from bnce.processes.traffic import Traffic

V = 700


@pytest.mark.parametrize("num_words", [1, 40, 3000])
def test_every_word_gets_a_number(num_words: int, device: torch.device) -> None:
    words = torch.randint(0, V, (num_words,), device=device)
    most = torch.zeros((), dtype=torch.int64, device=device)
    word, place = number(words, V, V + 5, most)
    assert word.shape == (V + 5,)
    assert torch.equal(word[place], words)
    assert int(most) == len(place.unique()) == len(words.unique())
    used = torch.zeros_like(word, dtype=torch.bool).index_fill_(0, place, True)
    assert not word[~used].any()


def test_words_without_room_are_counted(device: torch.device) -> None:
    words, most = torch.arange(90, device=device), torch.tensor(7, device=device)
    word, place = number(words, V, 40, most)
    assert int(most) == 90
    assert int(place.max()) < 40
    assert len(word.unique()) == 40
    number(words[:3], V, 40, most)
    assert int(most) == 90, "the most of all steps stays"


@pytest.mark.parametrize("in_order", [False, True])
def test_rows_come_and_gradients_go(in_order: bool, device: torch.device) -> None:
    words = torch.randint(0, V, (60,), device=device)
    tables = [torch.randn(V, 5, device=device), torch.randn(V, device=device)]
    traffic = Traffic(World(), V, 70, device, in_order=in_order)
    place = traffic.number(words)
    assert torch.equal(traffic.word_N[place], words)
    if in_order:
        assert torch.equal(traffic.word_N[: len(words.unique())], words.unique())
    working = [table.new_zeros(70, *table.shape[1:]) for table in tables]
    traffic.bring(tables, working)
    for table, brought in zip(tables, working, strict=True):
        assert torch.equal(brought[place], table[words])
    grad = torch.zeros(1, 70, 16, device=device)
    grad[0, place, 0] = 1 + words.float()
    row, back = traffic.send_back(grad)
    expected = torch.zeros(V, device=device)
    expected[words] = 1 + words.float()
    assert torch.equal(torch.zeros(V, device=device).index_add_(0, row, back[:, 0]), expected)


def _wide(device: torch.device, columns: int | None) -> tuple[Tensor, Tensor]:
    """Give the columns of a table in the middle of a wider one, and the wider one."""
    wide = torch.randn(50, 16, device=device)
    return (wide[:, 3] if columns is None else wide[:, 3 : 3 + columns]), wide


@pytest.mark.parametrize("columns", [None, 1, 9])
def test_rows_are_added_and_copied_between_columns(columns: int | None, device: torch.device) -> None:
    shape = () if columns is None else (columns,)
    place, values = torch.randint(0, 50, (200,), device=device), torch.randn(200, *shape, device=device)
    target, wide = _wide(device, columns)
    expected, before = target.double().index_add(0, place, values.double()), wide.clone()
    fast.add_rows_(target, place, values)
    torch.testing.assert_close(target.double(), expected, rtol=1e-4, atol=1e-4)
    is_inside = torch.zeros(16, dtype=torch.bool)
    is_inside[3 : 4 if columns is None else 3 + columns] = True
    assert torch.equal(wide[:, ~is_inside], before[:, ~is_inside])
    row = torch.randint(0, 50, (50,), device=device)
    found, expected = torch.zeros(2, 50, *shape, device=device)
    fast.copy_rows_(found, target, row)
    plain.copy_rows_(expected, target, row)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("is_dense", [False, True])
def test_updates_read_gradients_among_other_columns(is_dense: bool, device: torch.device) -> None:
    rate, clip = torch.tensor(0.2, device=device), torch.tensor(0.5, device=device)
    for columns in (None, 9):
        grad, _ = _wide(device, columns)
        results = []
        for given in (grad, grad.clone()):
            table, accumulator = torch.ones_like(given).contiguous(), torch.ones(50, device=device)
            if is_dense:
                fast.adagrad_(table, accumulator, None, given, rate, clip)
            else:
                fast.adagrad_(table, accumulator, torch.arange(50, device=device), given, rate, clip)
            results.append(table)
        assert torch.equal(*results)
        assert not torch.equal(results[0], torch.ones_like(results[0]))


def test_a_gradient_whose_rows_are_in_pieces_is_read_right(device: torch.device) -> None:
    rate, clip = torch.tensor(0.2, device=device), torch.tensor(0.5, device=device)
    grad = torch.randn(6, 50, device=device).t()
    tables = [torch.ones(50, 6, device=device) for _ in range(2)]
    for table, given in zip(tables, (grad, grad.contiguous()), strict=True):
        fast.adagrad_(table, torch.ones(50, device=device), None, given, rate, clip)
    assert torch.equal(*tables)
