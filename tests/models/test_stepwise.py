"""The recurrent layers of CPU training against PyTorch's own, which are their plain twins."""

from __future__ import annotations

import pytest
import torch
from making import model_of
from torch import Tensor, nn

from bnce.models import build_body, stepwise
from bnce.models.recurrent import _run_cell

CELLS = {"lstm": nn.LSTM, "rnn": nn.RNN}


def run_both(cell: str, dtype: torch.dtype, product_dtype: torch.dtype, resets: bool) -> tuple[list[Tensor], ...]:
    """Give what both ways find: hidden states, the state after them, and gradients of input and weights."""
    torch.manual_seed(1)
    T, B, E, H = 7, 5, 11, 13
    layer = CELLS[cell](E, H).to(dtype)
    input_TBE = torch.randn(T, B, E, dtype=dtype, requires_grad=True)
    state = [torch.randn(B, H, dtype=dtype) for _ in range(2 if cell == "lstm" else 1)]
    reset_TB = torch.rand(T, B) < 0.3 if resets else None
    parts = [input_TBE, *layer.parameters()]
    plain_TBH, plain_after = _run_cell(layer, input_TBE, tuple(part.unsqueeze(0) for part in state), reset_TB)
    error_TBH = torch.randn_like(plain_TBH)
    plain = [plain_TBH, *(part[0] for part in plain_after), *torch.autograd.grad(plain_TBH, parts, error_TBH)]
    run = getattr(stepwise, cell)
    fast_TBH, *after = run(input_TBE, *state, layer.all_weights[0], product_dtype, reset_TB)
    assert not any(part.requires_grad for part in after), "the state is cut from the graph"
    return [fast_TBH, *after, *torch.autograd.grad(fast_TBH, parts, error_TBH)], plain


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_equals_pytorchs_layer(cell: str, resets: bool) -> None:
    for fast, plain in zip(*run_both(cell, torch.float64, torch.float64, resets), strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_float32_is_about_as_exact_as_pytorchs(cell: str, resets: bool) -> None:
    for fast, plain in zip(*run_both(cell, torch.float32, torch.float32, resets), strict=True):
        assert (fast - plain).norm() < 1e-6 * plain.norm()


@pytest.mark.parametrize("cell", CELLS)
def test_bfloat16_rounds_products_alone(cell: str) -> None:
    for fast, plain in zip(*run_both(cell, torch.float32, torch.bfloat16, resets=True), strict=True):
        assert fast.dtype == torch.float32
        assert (fast - plain).norm() < 0.01 * plain.norm()


def test_a_second_backward_pass_is_refused() -> None:
    """The first one writes over what the gates were."""
    layer = nn.LSTM(3, 4)
    hidden_TBH, *_ = stepwise.lstm(
        torch.randn(2, 2, 3), torch.zeros(2, 4), torch.zeros(2, 4), layer.all_weights[0], torch.float32
    )
    hidden_TBH.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        hidden_TBH.sum().backward()


def test_stands_in_where_it_is_faster() -> None:
    input_TBE = torch.randn(2, 2, 3)
    rnn, lstm = nn.RNN(3, 4), nn.LSTM(3, 4)
    assert stepwise.is_for(input_TBE, rnn)
    assert not stepwise.is_for(input_TBE, lstm)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert stepwise.is_for(input_TBE, lstm)
    with torch.no_grad():
        assert not stepwise.is_for(input_TBE, rnn)


@pytest.mark.parametrize("model", ["rnn", "lstm", "relu-lstm"])
def test_a_body_under_autocast_trains_like_one_in_float32(model: str) -> None:
    torch.manual_seed(1)
    body = build_body(model_of(name=model, embedding_size=6, hidden_size=8, bottleneck_size=4, num_layers=2))
    input_TBE = torch.randn(5, 3, 6)
    found = []
    for narrow in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
            hidden_TBD, _ = body(input_TBE, body.initial_state(3))
        found.append(torch.autograd.grad(hidden_TBD.float().sum(), list(body.parameters())))
    for exact, rounded in zip(*found, strict=True):
        assert (exact - rounded).norm() < 0.05 * exact.norm()
