"""The output layer in a foreign loop on a GPU: no waiting for the host, and reasons for a NaN that come later."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from making import draws_all, layer_of
from torch import Tensor

import bnce
from bnce import LOSSES, OutputLayer, UserError

T, B, D, V = 20, 200, 16, 3000
GPU = torch.device("cuda")


def make(loss: str, **settings: object) -> OutputLayer:
    torch.manual_seed(1)
    num_noise = 5 if draws_all(loss) else 0
    noise = bnce.noise.unigram(torch.arange(V, 0, -1) ** 2)
    return layer_of(D, V, noise, loss=loss, num_noise=num_noise, sparse=True, **settings).to(GPU)  # type: ignore[arg-type]


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(T, B, D, device=GPU, requires_grad=True), torch.randint(0, 200, (T, B), device=GPU)


@contextmanager
def no_waiting() -> Iterator[None]:
    try:
        with warnings.catch_warnings():  # PyTorch says that it does not know all that waits
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("loss", LOSSES)
def test_a_call_makes_nobody_wait(loss: str) -> None:
    layer, (hidden, target) = make(loss), batch()
    for _ in range(2):
        layer(hidden, target).backward()
    with no_waiting():
        layer(hidden, target).backward()
        layer(hidden, target.masked_fill(hidden[..., 0] > 0, -100)).backward()


@pytest.mark.parametrize("wrong", [-1, V, 10**9])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_target_that_is_no_word_gives_nan_and_check_says_why(loss: str, wrong: int) -> None:
    layer, (hidden, target) = make(loss), batch()
    assert layer(hidden, target).isfinite()
    target[3, 4] = wrong
    with torch.autocast("cuda", torch.bfloat16):
        loss_of_wrong = layer(hidden, target)
    loss_of_wrong.backward()
    assert loss_of_wrong.isnan()
    with pytest.raises(UserError, match=f"hold {wrong}, but the layer has {V} words"):
        layer.check()


@pytest.mark.parametrize("wrong", [-1, V])
def test_the_log_probability_of_what_is_no_word_is_nan_and_makes_nobody_wait(wrong: int) -> None:
    layer, (hidden, target) = make("bnce"), batch()
    expected = layer.log_probs(hidden, target)
    target[3, 4] = wrong
    with no_waiting():
        found = layer.log_probs(hidden, target)
    assert found[3, 4].isnan()
    expected[3, 4] = torch.nan
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_more_different_targets_than_the_noise_has_are_told() -> None:
    layer, (hidden, _) = make("chunk-bnce"), batch()
    target = torch.arange(T * B, device=GPU).reshape(T, B) % V
    assert layer(hidden, target).isnan()
    with pytest.raises(UserError, match=f"had {V} different targets, more than targets that follow the noise have"):
        layer.check()
    layer.configure(max_distinct_targets=V)
    assert layer(hidden, target).isfinite()


def test_targets_without_room_are_told() -> None:
    layer, (hidden, _) = make("adaptive-softmax"), batch()
    target = V - 1 - torch.arange(T * B, device=GPU).reshape(T, B) % 200  # rare words alone
    layer.configure(capacities=[1, 1])
    assert layer(hidden, target).isnan()
    with pytest.raises(UserError, match=r"more than capacities say \(1\), so its loss was NaN"):
        layer.check()
    assert layer.structure is not None
    assert layer.structure.places_CV is not None
    layer.configure(capacities=layer.structure.places_CV[:, target.cpu().flatten()].sum(1).tolist())
    assert layer(hidden, target).isfinite()
    layer.check()


def test_an_exact_layer_agrees_with_the_cpu() -> None:
    layer, (hidden, target) = make("adaptive-softmax"), batch()
    target = target * 13 % V
    found = []
    for device in (torch.device("cpu"), GPU):
        layer.to(device).zero_grad(set_to_none=True)
        if layer.structure is not None and layer.structure.places_CV is not None:
            layer.configure(capacities=layer.structure.places_CV[:, target.cpu().flatten()].sum(1).tolist())
        own = hidden.detach().to(device).requires_grad_()
        loss_value = layer(own, target.to(device))
        loss_value.backward()
        # Copies, because a layer that moves takes its gradients along.
        grads = [p.grad.to_dense().to("cpu", copy=True) for p in layer.parameters() if p.grad is not None]
        scores = layer.log_probs(own, target.to(device)).detach().cpu(), layer.all_scores(own[0, :5]).detach().cpu()
        found.append([loss_value.detach().cpu(), own.grad.cpu(), *grads, *scores])  # type: ignore[union-attr]
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("loss", ["bnce", "chunk-bnce", "adaptive-softmax"])
def test_a_captured_call_tells_when_it_is_asked(loss: str) -> None:
    layer, (hidden, target) = make(loss), batch()

    def run() -> Tensor:
        value = layer(hidden, target)
        value.backward()
        hidden.grad = None
        layer.zero_grad(set_to_none=True)
        return value.detach()

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = run()
    graph.replay()
    layer.check()
    assert value.isfinite()
    target[0, 0] = V + 1
    graph.replay()
    with pytest.raises(UserError, match=f"hold {V + 1}"):
        layer.check()
    assert value.isnan()
    target[0, 0] = 0
    graph.replay()
    layer.check()
    assert value.isfinite()
