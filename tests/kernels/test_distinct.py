"""The different words of a chunk against `torch.unique`.

Legend: T time steps, B streams, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch

from bnce.kernels.distinct import distinct_words, scratch

V = 50


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize(("T", "B", "num_words"), [(1, 2, 1), (3, 6, 4), (5, 7, 30), (20, 60, 30)])
def test_they_are_found_at_a_fixed_shape(T: int, B: int, num_words: int, is_masked: bool, device: torch.device) -> None:
    target_TB = torch.randint(0, num_words, (T, B), device=device)
    valid_TB = torch.rand(T, B, device=device) < 0.7 if is_masked else torch.ones_like(target_TB, dtype=torch.bool)
    valid_TB[0, 0] = True
    word_U, column_TB, count_U = distinct_words(target_TB, 40, V, valid_TB if is_masked else None)
    expected, expected_count = target_TB[valid_TB].unique(return_counts=True)
    U = len(expected)
    assert torch.equal(word_U[column_TB[valid_TB].long()], target_TB[valid_TB])
    assert bool((column_TB[~valid_TB] == -1).all())
    assert torch.equal(word_U[:U].sort().values, expected)
    assert torch.equal(count_U[word_U[:U].argsort()].long(), expected_count)
    assert not count_U[U:].any()


def test_words_beyond_the_columns_have_none(device: torch.device) -> None:
    target_TB = torch.arange(12, device=device).view(3, 4)
    word_U, column_TB, count_U = distinct_words(target_TB, 8, V)
    assert int((column_TB == -2).sum()) == 4
    has_one_TB = column_TB >= 0
    assert torch.equal(word_U[column_TB[has_one_TB].long()], target_TB[has_one_TB])
    assert int(count_U.sum()) == 8


@pytest.mark.parametrize("target", [-1, V, V + 3])
def test_what_is_no_word_has_no_column_and_writes_nowhere(target: int, device: torch.device) -> None:
    target_TB = torch.randint(0, 10, (3, 4), device=device)
    beyond = scratch(2 * V, target_TB.device)[V:]  # of a larger table on the same device
    beyond.fill_(77)
    target_TB[1, 2] = target
    _, column_TB, count_U = distinct_words(target_TB, 40, V)
    assert int(column_TB[1, 2]) == -2
    assert int(count_U.sum()) == 11
    assert bool((beyond == 77).all())
