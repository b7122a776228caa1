"""A layer inside a compiled model, in one graph."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch._inductor.config as inductor
from torch import nn

import bnce
from tests.stacks.small import D, V, build, dense, drawn_alike, hidden_and_targets

# What PyTorch's compiler does to itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Model(nn.Module):
    """A body and a layer, as a user has them."""

    def __init__(self, layer: bnce.OutputLayer) -> None:
        super().__init__()
        self.body, self.layer = nn.Linear(D, D), layer

    def forward(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Compute the loss."""
        loss: torch.Tensor = self.layer(torch.tanh(self.body(hidden)), targets)
        return loss


@pytest.fixture(autouse=True)
def compiled_anew() -> None:
    torch._dynamo.reset()


def check(model: Model, compiled: nn.Module) -> None:
    for seed in (2, 3):
        hidden, targets = hidden_and_targets(seed)
        targets[0, 1] = -100
        found = drawn_alike(compiled, hidden, targets)
        found.backward()
        gradients = [dense(parameter.grad).clone() for parameter in model.parameters()]
        model.zero_grad()
        expected = drawn_alike(model, hidden, targets)
        expected.backward()
        torch.testing.assert_close(found, expected)
        for mine, parameter in zip(gradients, model.parameters(), strict=True):
            torch.testing.assert_close(mine, dense(parameter.grad))
        model.zero_grad()


@pytest.mark.parametrize("loss", bnce.LOSSES)
def test_a_model_is_one_graph_and_refuses_what_is_no_word(loss: str) -> None:
    model = Model(build(loss))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    check(model, compiled)
    hidden, targets = hidden_and_targets()
    for target in (V, -1):
        targets[0, 0] = target
        with pytest.raises((IndexError, RuntimeError), match=f"out of (range|bounds)|{V} is out"):
            compiled(hidden, targets)


def test_sequences_of_several_lengths_are_one_graph() -> None:
    layer = build("chunk-bnce")
    hidden, targets = hidden_and_targets()
    ids = torch.tensor([4, 4, 4, 9, 9, 9, 9, 9, 7, 7, 7, 7])
    arguments = hidden.detach().flatten(0, 1), targets.flatten()
    found = torch.compile(layer, fullgraph=True, backend="aot_eager")(*arguments, streams=ids)
    torch.testing.assert_close(found, layer(*arguments, streams=ids))


def test_autocast_is_seen_by_the_compiler() -> None:
    model = Model(build())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(model, compiled)


def test_second_derivatives_are_refused_when_compiled() -> None:
    hidden, targets = hidden_and_targets()
    loss = torch.compile(build(), fullgraph=True, backend="aot_eager")(hidden, targets)
    (grad,) = torch.autograd.grad(loss, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        grad.sum().backward()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(shutil.which("g++") is None, reason="PyTorch's own compiler needs one for C++")
def test_a_negative_target_does_not_count_from_the_end_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what compiled code makes of it."""
    # Two small kernels: to try the processor's instructions, to compile headers for many kernels and to start processes
    # that compile them would take longer than the kernels do.
    monkeypatch.setattr(inductor.cpp, "vec_isa_ok", True)
    monkeypatch.setattr(inductor, "cpp_cache_precompile_headers", False)
    monkeypatch.setattr(inductor, "compile_threads", 1)
    hidden, targets = hidden_and_targets()
    compiled = torch.compile(build(), fullgraph=True)
    torch.testing.assert_close(compiled(hidden.detach(), targets), build()(hidden, targets))
    targets[0, 0] = -1
    with pytest.raises(RuntimeError, match="out of bounds"):
        compiled(hidden.detach(), targets)


@pytest.mark.parametrize("loss", ["bnce", "softmax", "chunk-bnce"])
def test_a_layer_is_exported_for_batches_of_any_size(loss: str) -> None:
    layer = build(loss).eval()
    hidden, targets = hidden_and_targets()
    size = torch.export.Dim("size", min=2, max=4096)
    with torch.no_grad():
        exported = torch.export.export(layer, (hidden, targets), dynamic_shapes=({1: size}, {1: size})).module()
        wide = torch.cat([hidden, hidden.flip(1)], 1), torch.cat([targets, targets], 1)
        torch.testing.assert_close(exported(*wide), layer(*wide))
