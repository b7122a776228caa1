"""Row gradients of several parts and processes: the same sums, at shapes that are known beforehand or not."""

from __future__ import annotations

import pytest
import torch
from making import optimiser_of
from torch import Tensor

from bnce.machine.processes import World
from bnce.optimisers.exchange import compact, gather_rows, number
from bnce.optimisers.gradients import merge_rows
from bnce.optimisers.optimiser import build_optimiser
from tests.optimisers import tiny

V, D = 50, 3


def parts(num_words: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randint(V, (num_words,), generator=generator), torch.randn(num_words, D, generator=generator).double())
        for _ in range(3)
    ]


def total(rows: list[tuple[Tensor, Tensor]]) -> Tensor:
    return sum(torch.zeros(V, D).double().index_add_(0, *row) for row in rows)  # type: ignore[return-value]


@pytest.mark.parametrize("num_words", [1, 20, 400])
@pytest.mark.parametrize("fixed", [True, False])
def test_all_parts_are_added_up(num_words: int, fixed: bool) -> None:
    given = parts(num_words)
    capacity = min(num_words, V)
    merged = [compact(*part, V, capacity) if fixed else merge_rows(*part, V) for part in given]
    words, values = gather_rows(merged, World(), V, fixed=fixed)
    torch.testing.assert_close(total([(words, values)]), total(given))
    assert len(words) == (min(3 * capacity, V) if fixed else len(torch.cat([part[0] for part in given]).unique()))


def test_numbers_at_a_fixed_shape() -> None:
    words = parts(20)[0][0]
    word_K, place = number(words, V, 30)
    assert torch.equal(word_K[place], words)
    assert set(word_K.tolist()) == set(words.tolist()), "the places left over name no other word"


def test_a_step_never_gathers_more_different_rows_than_there_is_room_for() -> None:
    """Of 100 words of the text at most 40 are different; whatever else is gathered may be."""
    optimiser = build_optimiser(tiny.build(), optimiser_of())
    assert optimiser._capacity(100, V, 1) == V
    assert optimiser._capacity(100, 1000, 1) == 100, "nothing was counted"
    optimiser.words_of_text = 100, 40
    assert optimiser._capacity(100, 1000, 1) == 40
    assert optimiser._capacity(130, 1000, 1) == 40 + 30
    assert optimiser._capacity(260, 1000, 2) == 2 * 40 + 60
    assert optimiser._capacity(35, 1000, 1) == 35, "the last chunk of an epoch is shorter"
