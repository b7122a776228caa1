"""Every optimiser: the clipped norm is the true one, untouched rows stay, and state comes back."""

from __future__ import annotations

import copy

import pytest
import torch
from making import optimiser_of

from bnce import OPTIMISERS
from bnce.language_model import LanguageModel
from bnce.optimisers.optimiser import Optimiser, build_optimiser
from tests.optimisers.tiny import V, build, compute_gradients, step


def test_norm_without_merging_would_be_another() -> None:
    model = build()
    compute_gradients(model, 0)
    unmerged = torch.stack(
        [
            torch.linalg.vector_norm(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
            for parameter in model.parameters()
        ]
    )
    norm = step(build_optimiser(model, optimiser_of())).norm
    assert abs(torch.linalg.vector_norm(unmerged).item() / norm.item() - 1) > 0.01


def test_rows_not_read_are_left_to_the_bit() -> None:
    for name in OPTIMISERS:
        model = build()
        before = copy.deepcopy(model)
        optimiser = build_optimiser(model, optimiser_of(name))
        compute_gradients(model, 0)
        step(optimiser)
        for table, old in zip(model.tables().values(), before.tables().values(), strict=True):
            assert torch.equal(table[V // 2 :], old[V // 2 :]), "these words do not occur"
            assert not torch.equal(table[: V // 2], old[: V // 2])


@pytest.mark.parametrize("name", OPTIMISERS)
def test_state_comes_back_to_the_bit(name: str) -> None:
    model = build()
    optimiser = build_optimiser(model, optimiser_of(name))

    def train(network: LanguageModel, with_optimiser: Optimiser, steps: range) -> None:
        for number in steps:
            compute_gradients(network, number)
            step(with_optimiser)

    train(model, optimiser, range(3))
    twin = copy.deepcopy(model)
    resumed = build_optimiser(twin, optimiser_of(name))
    # Given directly: two optimisers must not share what they were made from.
    resumed.load_state_tensors(optimiser.state_tensors())
    train(model, optimiser, range(3, 6))
    train(twin, resumed, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    state, other = optimiser.state_tensors(), resumed.state_tensors()
    assert state.keys() == other.keys()
    assert all(torch.equal(state[key], other[key]) for key in state)


@pytest.mark.parametrize(("name", "kept"), [("rowwise", ["accumulator"]), ("rowwise-adam", ["square", "last", "step"])])
def test_state_names_everything_a_step_depends_on(name: str, kept: list[str]) -> None:
    model = build()
    optimiser = build_optimiser(model, optimiser_of(name))
    compute_gradients(model, 0)
    step(optimiser)
    expected = {f"{part}.{table}" for part in kept for table in model.tables()}
    expected |= {"body.mean", "body.square", "body.count"}
    assert set(optimiser.state_tensors()) == expected
    assert build_optimiser(model, optimiser_of("sgd")).state_tensors() == {}
