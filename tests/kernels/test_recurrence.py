"""The recurrent kernels against torch.nn's own cells, outputs and gradients, at sizes that need padding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from making import model_of
from torch import Tensor, nn

from bnce.kernels import recurrence
from bnce.kernels.recurrence_sizes import MULTIPLE, Sizes
from bnce.models import build_body
from bnce.models.recurrent import run_layer

T, B, E, H = 4, 5, 6, 7
Check = Callable[[Tensor, Tensor, Tensor], None]


def run_plain(cell: nn.RNN | nn.LSTM, inputs: Tensor, state: tuple[Tensor, ...], grad: Tensor) -> list[Tensor]:
    output, after = run_layer(cell, inputs, state)
    return [output, *after, *torch.autograd.grad(output, [inputs, *cell.all_weights[0]], grad)]


def random_state(cell: nn.RNN | nn.LSTM) -> tuple[Tensor, ...]:
    device = cell.weight_ih_l0.device
    return tuple(torch.randn(1, B, H, device=device) for _ in range(2 if isinstance(cell, nn.LSTM) else 1))


@pytest.mark.parametrize("E", [6, 8])
@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM])
def test_equals_the_plain_cell(
    kind: type[nn.RNN] | type[nn.LSTM], E: int, device: torch.device, no_worse: Check
) -> None:
    cell = kind(E, H).to(device)
    inputs = torch.randn(T, B, E, device=device, requires_grad=True)
    state = random_state(cell)
    grad = torch.randn(T, B, H, device=device)
    plain = run_plain(cell, inputs, state, grad)
    weights = cell.all_weights[0]
    wide, after = recurrence.run_layer(weights, inputs, state)
    output = wide[..., :H]
    fast = [output, *after, *torch.autograd.grad(output, [inputs, *weights], grad)]
    exact_inputs = inputs.detach().double().requires_grad_()
    exact = run_plain(cell.double(), exact_inputs, tuple(part.double() for part in state), grad.double())
    assert wide.shape[2] % MULTIPLE == 0
    assert not wide[..., H:].any(), "padding units stay zero"
    for fast_part, plain_part, exact_part in zip(fast, plain, exact, strict=True):
        assert fast_part.shape == plain_part.shape
        no_worse(fast_part, plain_part, exact_part)


@pytest.mark.parametrize("in_one_launch", [False, True])
@pytest.mark.parametrize("num_gates", [1, 4])
def test_weights_are_padded_with_zeros(num_gates: int, in_one_launch: bool, device: torch.device) -> None:
    sizes = Sizes(T, B, E, H, num_gates, in_one_launch=in_one_launch, multiple=16)
    weight, in_bias, bias = (torch.randn(num_gates * H, *rest, device=device) for rest in ((E,), (), ()))
    expected = torch.zeros(num_gates, sizes.wide_H, sizes.wide_E, device=device)
    expected[:, :H, :E] = weight.view(num_gates, H, E)
    expected[:, :H, E] = (in_bias + bias).view(num_gates, H)
    assert torch.equal(sizes._gates(sizes.pad_in_weight(weight, in_bias, bias, torch.float32)), expected)
    expected[:, :H, E] = 0.0
    found = sizes._pad_gates(weight, sizes.wide_E, None, torch.float32)
    assert torch.equal(sizes._gates(found), expected)


def test_last_state_carries_no_gradient(device: torch.device) -> None:
    cell = nn.LSTM(E, H).to(device)
    wide, after = recurrence.run_layer(cell.all_weights[0], torch.randn(T, B, E, device=device), random_state(cell))
    assert wide.requires_grad
    assert not any(part.requires_grad for part in after)


@pytest.mark.parametrize("has_resets", [False, True])
@pytest.mark.parametrize("name", ["rnn", "lstm", "relu-lstm"])
def test_two_layers_equal_the_plain_ones(
    name: str, has_resets: bool, device: torch.device, no_worse: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns of zeros that one layer leaves behind are none of the next one's input."""
    body = build_body(model_of(name, E, H, 5, num_layers=2)).to(device)
    inputs, state = torch.randn(T, B, E, device=device), body.initial_state(B)
    state = tuple(torch.randn_like(part) for part in state)
    grad = torch.randn(T, B, body.output_size, device=device)
    # By step: the chunk's first, two neighbours, the last; one stream has none.
    reset_TB = torch.tensor([[1, 0, 0, 1, 0], [0, 1, 0, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 1, 1]], device=device).bool()
    resets = (reset_TB,) if has_resets else ()

    def run(dtype: torch.dtype, *, fast: bool = False) -> list[Tensor]:
        monkeypatch.setattr("bnce.models.recurrent.usable", lambda tensor, autocast: fast)
        body.to(dtype)
        given = inputs.to(dtype).requires_grad_()
        output, after = body(given, tuple(part.to(dtype) for part in state), *resets)
        return [output, *after, *torch.autograd.grad(output, [given, *body.parameters()], grad.to(dtype))]

    plain, exact = run(torch.float32), run(torch.float64)
    for fast_part, plain_part, exact_part in zip(run(torch.float32, fast=True), plain, exact, strict=True):
        assert fast_part.shape == plain_part.shape
        no_worse(fast_part, plain_part, exact_part)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM])
def test_resets_in_bf16_forget_all_before_them(kind: type[nn.RNN] | type[nn.LSTM], device: torch.device) -> None:
    """To the bit: a stream that is reset goes on as one that begins there, and has its gradients."""
    cell = kind(E, H).to(device)
    inputs = torch.randn(T, B, E, device=device, requires_grad=True)
    before = random_state(cell)
    zeros = tuple(torch.zeros_like(part) for part in before)
    reset_TB = torch.zeros(T, B, dtype=torch.bool, device=device)
    reset_TB[2] = True
    with torch.autocast(device.type, dtype=torch.bfloat16):
        wide, after = run_layer(cell, inputs, before, reset_TB)
        fresh, fresh_after = run_layer(cell, inputs[2:], zeros, torch.zeros_like(reset_TB[2:]))
    assert wide.shape[2] % MULTIPLE == 0, "the kernel ran"
    assert torch.equal(wide[2:], fresh)
    assert all(torch.equal(part, expected) for part, expected in zip(after, fresh_after, strict=True))
    (found,) = torch.autograd.grad(wide[2:].float().square().sum(), inputs)
    (expected,) = torch.autograd.grad(fresh.float().square().sum(), inputs)
    assert torch.equal(found, expected)
