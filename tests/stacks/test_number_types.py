"""Types of numbers that people choose: another default type of PyTorch, and float64 throughout."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import bnce
from tests.losses import reference
from tests.stacks.small import B, D, K, T, V, build, hidden_and_targets


@pytest.fixture(params=[torch.bfloat16, torch.float16, torch.float64])
def default_dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


def test_a_default_type_leaves_step_counts_and_rates_alone(default_dtype: torch.dtype) -> None:
    table = nn.Parameter(torch.zeros(2, 3))
    optimiser = bnce.RowwiseAdam([table], lr=2e-3)
    for _ in range(300):  # above 256, bfloat16 cannot count by ones
        table.grad = torch.ones_like(table)
        optimiser.step()
    state = optimiser.state[table]
    assert state["step"].item() == 300
    assert state["square"][0].item() == pytest.approx(1 - 0.99**300, rel=1e-5)
    one = nn.Parameter(torch.zeros(1, 1, dtype=torch.float32))
    one.grad = torch.ones_like(one)
    bnce.RowwiseAdagrad([one], lr=0.3).step()
    assert one.item() == pytest.approx(-0.3, rel=1e-6)


def test_a_default_type_leaves_drawn_words_alone(default_dtype: torch.dtype) -> None:
    """A coin in bfloat16 has 256 sides, so that a word of probability 0.001 is drawn too often."""
    noise = bnce.Noise([1e-3, 1.0, 1.0])
    torch.manual_seed(1)
    share = (noise.sample((1_000_000,)) == 0).double().mean().item()
    expected = noise.log_probs_V.double().exp()[0].item()
    assert share == pytest.approx(expected, abs=5 * (expected / 1e6) ** 0.5)


def test_a_default_type_leaves_the_constant_and_the_noise_alone(default_dtype: torch.dtype) -> None:
    for learn in (False, True):
        layer = build(log_z=9.21, learn_log_z=learn)
        assert layer.log_z.item() == pytest.approx(9.21, rel=1e-7)
    assert layer.noise.log_probs_V.dtype == torch.promote_types(default_dtype, torch.float32)
    assert bnce.noise.Running(V).log_probs_V.dtype == layer.noise.log_probs_V.dtype
    hidden = torch.randn(T, B, D)
    targets = torch.randint(V, (T, B))
    for loss in bnce.LOSSES:
        for reduction in ("mean", "none"):
            build(loss, reduction=reduction)(hidden, targets).sum().backward()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("kind", ["bnce", "chunk-bnce", "mixture"])
def test_float64_is_accurate_where_positions_are_counted(kind: str, reduction: str, masked: bool) -> None:
    options = {"num_noise": K, "drawn": bnce.noise.uniform(V)} if kind == "mixture" else {}
    loss = "bnce" if kind == "mixture" else kind
    layer = build(loss, reduction=reduction, **options).double()
    hidden, targets = hidden_and_targets()
    hidden = hidden.detach().double()
    mask = torch.ones_like(targets, dtype=torch.bool) if masked else None
    torch.manual_seed(7)
    found = layer(hidden, targets, mask).sum().item()
    torch.manual_seed(7)
    expected = reference.losses(layer, hidden, targets).sum().item()
    assert found == pytest.approx(expected, rel=1e-12)


def test_float64_is_accurate_with_a_column_per_position() -> None:
    layer = build("chunk-bnce").double()
    hidden, targets = hidden_and_targets()
    hidden = hidden.detach().double()
    streams = torch.arange(T * B) % B
    found = layer(hidden.flatten(0, 1), targets.flatten(), streams=streams).item() * T * B
    assert found == pytest.approx(reference.losses(layer, hidden, targets).sum().item(), rel=1e-12)


@pytest.mark.parametrize("sparse", [False, True])
def test_float64_is_accurate_in_row_wise_optimisers(sparse: bool) -> None:
    """As in Python's own float64: the rate, and the decay of the steps in which a row has no gradient."""
    for kind, options in ((bnce.RowwiseAdagrad, {}), (bnce.RowwiseAdam, {"beta2": 0.9})):
        table = nn.Parameter(torch.zeros(2, 1, dtype=torch.float64))
        optimiser = kind([table], lr=0.1, **options)
        value, square = 0.0, 0.0
        for step in range(5):
            gradient = 0.7 if step % 3 == 0 else 0.0
            square = square + gradient**2 if not options else 0.9 * square + 0.1 * gradient**2
            value -= 0.1 * gradient / (square**0.5 + 1e-8)
            grad = torch.tensor([[gradient], [1.0]], dtype=torch.float64)
            table.grad = grad.to_sparse(1) if sparse else grad
            optimiser.step()
        assert table[0].item() == pytest.approx(value, rel=1e-14)
