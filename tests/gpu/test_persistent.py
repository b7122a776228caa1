"""All steps in one launch: against float64 beside the step-by-step way's own error, in graphs, many times over."""

from __future__ import annotations

import pytest
import torch
from making import model_of
from torch import Tensor, nn

from bnce.kernels import recurrence
from bnce.kernels.hopper import persistent
from bnce.models import build_body, recurrent

if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("only Hopper GPUs run all steps in one launch", allow_module_level=True)

GPU = torch.device("cuda")
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def wherever_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BNCE_PERSISTENT", "1")


class Layer:
    """One recurrent layer with an input, a state before it and a gradient after it."""

    def __init__(self, name: str, T: int, B: int, E: int, H: int, has_resets: bool = False) -> None:
        torch.manual_seed(1)
        self.H = H
        self.cell = (nn.LSTM if name == "lstm" else nn.RNN)(E, H).to(GPU)
        self.input = torch.randn(T, B, E, device=GPU, requires_grad=True)
        self.state = [torch.randn(1, B, H, device=GPU) for _ in range(2 if name == "lstm" else 1)]
        self.grad = torch.randn(T, B, H, device=GPU).to(BF16)
        self.reset = torch.rand(T, B, device=GPU) < 0.2 if has_resets else None

    def run(self) -> list[Tensor]:
        weights = self.cell.all_weights[0]
        with torch.autocast("cuda", dtype=BF16):
            wide, last = recurrence.run_layer(weights, self.input, tuple(self.state), self.reset)
        assert wide.shape[2] > self.H
        output = wide[..., : self.H]
        return [wide.detach(), *last, *torch.autograd.grad(output, [self.input, *weights], self.grad)]

    def exact(self) -> list[Tensor]:
        cell = type(self.cell)(self.cell.input_size, self.H).to(GPU).double()
        cell.load_state_dict(self.cell.state_dict())
        given = self.input.detach().double().requires_grad_()
        with torch.backends.cudnn.flags(enabled=False):
            output, after = recurrent.run_layer(cell, given, tuple(part.double() for part in self.state), self.reset)
            grads = torch.autograd.grad(output, [given, *cell.all_weights[0]], self.grad.double())
        return [output.detach(), *(part.detach() for part in after), *grads]


def errors(found: list[Tensor], exact: list[Tensor], H: int) -> list[float]:
    return [
        float(((part[..., :H] if part.ndim == 3 else part) - true).norm() / true.norm())
        for part, true in zip(found, exact, strict=True)
    ]


def num_launches(name: str) -> int:
    return sum(int(ready.arrived.sum()) for key, ready in persistent._READY.items() if key[0].startswith(name))


@pytest.mark.parametrize("name", ["lstm", "rnn"])
@pytest.mark.parametrize(
    ("T", "B", "H"), [(20, 400, 600), (20, 37, 600), (1, 37, 600), (20, 1600, 600), (3, 5, 41), (7, 130, 200)]
)
@pytest.mark.parametrize("has_resets", [False, True])
def test_errs_no_more_than_step_by_step(
    name: str, T: int, B: int, H: int, has_resets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = Layer(name, T, B, 20, H, has_resets)
    before = num_launches(name)
    found, exact = layer.run(), layer.exact()
    assert T == 1 or num_launches(name) > before, "it ran in one launch"
    assert not found[0][..., H:].any(), "padding units stay zero"
    monkeypatch.setenv("BNCE_PERSISTENT", "0")
    # As much as the other way's error, which rounds once more, and its units' last bits.
    for error, own in zip(errors(found, exact, H), errors(layer.run(), exact, H), strict=True):
        assert error <= 1.5 * own + 1e-4


@pytest.mark.parametrize("name", ["lstm", "rnn"])
def test_1500_units_go_step_by_step(name: str) -> None:
    assert not persistent.available(torch.zeros(1, device=GPU), BF16, name, 1536, 500)
    assert persistent.available(torch.zeros(1, device=GPU), BF16, name, 640, 400)


def test_only_what_is_faster_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BNCE_PERSISTENT")
    monkeypatch.setattr(persistent, "_shares_gpu", lambda: False)
    tensor = torch.zeros(1, device=GPU)
    assert persistent.available(tensor, BF16, "lstm", 640, 400)
    assert not persistent.available(tensor, BF16, "lstm", 640, 1600)
    assert persistent.available(tensor, BF16, "rnn", 640, 1600)
    assert not persistent.available(tensor, BF16, "rnn", 1536, 500)


@pytest.mark.parametrize(("name", "B"), [("lstm", 400), ("lstm", 1600), ("rnn", 400)])
def test_a_graph_gives_the_same_bits_each_time(name: str, B: int) -> None:
    """Many replays in a row, with other inputs between: a race or a counter left behind would show."""
    layer = Layer(name, 20, B, 200, 600)
    with torch.cuda.stream(torch.cuda.Stream()):
        layer.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = layer.run()
    inputs = [torch.randn_like(layer.input) for _ in range(5)]
    seen: list[list[Tensor]] = []
    for number in range(200):
        with torch.no_grad():
            layer.input.copy_(inputs[number % 5])
        graph.replay()
        if number < 5:
            seen.append([part.clone() for part in outputs])
        else:
            assert all(torch.equal(part, old) for part, old in zip(outputs, seen[number % 5], strict=True)), number
    eager = layer.run()
    assert all(torch.equal(part, old) for part, old in zip(outputs, eager, strict=True))


@pytest.mark.parametrize("name", ["lstm", "rnn", "relu-lstm"])
def test_two_layers_learn_as_step_by_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    body = build_body(model_of(name, 30, 200, 25, num_layers=2)).to(GPU)
    inputs, state = torch.randn(9, 33, 30, device=GPU), body.initial_state(33)
    results = []
    for setting in ("1", "0"):
        monkeypatch.setenv("BNCE_PERSISTENT", setting)
        with torch.autocast("cuda", dtype=BF16):
            output, after = body(inputs, state)
        grads = torch.autograd.grad(output.float().square().sum(), list(body.parameters()))
        results.append([output.detach(), *after, *grads])
    for found, plain in zip(*results, strict=True):
        assert float((found.float() - plain.float()).norm() / plain.float().norm()) < 0.03
