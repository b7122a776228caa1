"""Mixed precision: autocast, GradScaler, narrow parameters, and float64 all the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from making import draws_all, layer_of

import bnce
from tests.stacks.small import COUNTS, B, K, T, V, build, dense, drawn_alike, hidden_and_targets

NARROW = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("loss", bnce.LOSSES)
def test_autocast_rounds_products_and_nothing_else(loss: str, dtype: torch.dtype, sparse: bool) -> None:
    exact, layer = build(loss), build(loss, sparse=sparse)
    hidden, targets = hidden_and_targets()
    expected = drawn_alike(exact, hidden, targets)
    expected.backward()
    with torch.autocast("cpu", dtype=dtype):
        found = drawn_alike(layer, hidden.detach().to(dtype), targets)
    found.backward()
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=torch.finfo(dtype).eps)
    largest = dense(exact.weight.grad).abs().max()
    for mine, wanted in zip(layer.parameters(), exact.parameters(), strict=True):
        assert mine.grad is not None
        assert mine.grad.dtype == torch.float32
        error = (dense(mine.grad) - dense(wanted.grad)).abs().max()
        assert error <= 4 * torch.finfo(dtype).eps * largest


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("loss", bnce.LOSSES)
def test_autocast_leaves_what_is_no_product_alone(loss: str, dtype: torch.dtype) -> None:
    """Hidden states of zero have exact products in any type, so the whole loss must be that of float32."""
    layer, (hidden, targets) = build(loss), hidden_and_targets()
    with torch.no_grad():
        layer.bias += torch.linspace(-3.0, 3.0, len(layer.bias))
    hidden = torch.zeros_like(hidden)
    expected = drawn_alike(layer, hidden, targets)
    with torch.autocast("cpu", dtype=dtype):
        found = drawn_alike(layer, hidden.to(dtype), targets)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", bnce.LOSSES)
def test_a_grad_scaler_gives_back_the_gradient(loss: str, sparse: bool) -> None:
    """Adagrad's first step does not depend on the scale of a gradient, so the gradients themselves are compared."""
    hidden, targets = hidden_and_targets()
    plain, layer = build(loss), build(loss, sparse=sparse)
    drawn_alike(plain, hidden, targets).backward()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(drawn_alike(layer, hidden, targets)).backward()
    scaler.unscale_(bnce.RowwiseAdagrad(layer.parameters()))
    for mine, wanted in zip(layer.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(dense(mine.grad), dense(wanted.grad))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", bnce.LOSSES)
def test_a_grad_scaler_changes_no_step(loss: str, sparse: bool) -> None:
    hidden, targets = hidden_and_targets()
    stepped = []
    for scale in (1.0, 1024.0):
        layer = build(loss, sparse=sparse)
        optimiser = bnce.RowwiseAdagrad(layer.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(drawn_alike(layer, hidden, targets)).backward()
        scaler.unscale_(optimiser)
        bnce.clip_grad_norm_(layer.parameters(), max_norm=0.01)
        scaler.step(optimiser)
        scaler.update()
        stepped.append(layer.weight.detach())
    assert not torch.equal(stepped[0], build(loss).weight)
    torch.testing.assert_close(stepped[1], stepped[0])


def test_a_grad_scaler_skips_a_step_that_overflowed() -> None:
    layer, (hidden, targets) = build(sparse=True), hidden_and_targets()
    optimiser = bnce.RowwiseAdagrad(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    before = layer.weight.detach().clone()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = layer(hidden * 1e38, targets)
    scaler.scale(loss).backward()
    scaler.step(optimiser)
    scaler.update()
    assert torch.equal(layer.weight, before)
    assert scaler.get_scale() == 32768.0


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("loss", bnce.LOSSES)
def test_a_double_layer_computes_in_float64(loss: str, reduction: str) -> None:
    learns = "learn_log_z" in bnce.LOSSES[loss].__struct_fields__ and bnce.LOSSES[loss]().normalises
    # Smaller than elsewhere: every number is moved twice.
    num_noise = K if draws_all(loss) else 0
    torch.manual_seed(1)
    options: dict[str, Any] = {"num_noise": num_noise, "reduction": reduction} | (
        {"learn_log_z": True} if learns else {}
    )
    layer = layer_of(3, 11, noise=COUNTS[:11], loss=loss, **options).double()
    hidden, targets = hidden_and_targets()
    hidden, targets = hidden[:2, :3, :3].detach().double().requires_grad_(), targets[:2, :3]
    targets[0, 1], targets[1, 2] = -100, targets[0, 0]

    def call(*values: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)
        named = dict(zip(("weight", "bias", "log_z"), values[1:], strict=False))
        result: torch.Tensor = torch.func.functional_call(layer, named, (values[0], targets))
        return result

    assert torch.autograd.gradcheck(call, (hidden, layer.weight, layer.bias, layer.log_z)[: 4 if learns else 3])
    assert layer.loss_sum(hidden, targets.clamp(min=0)).dtype == torch.float64


def test_a_double_layer_has_its_noise_in_float64() -> None:
    layer = build().double()
    exact_V = np.log(COUNTS.numpy() / COUNTS.sum().item())
    np.testing.assert_allclose(layer.noise.log_probs_V.numpy(), exact_V, rtol=1e-15)
    hidden, targets = hidden_and_targets()
    assert layer.log_probs(hidden.double(), targets).dtype == torch.float64
    assert layer.log_probs(hidden.double(), targets.unsqueeze(2).expand(T, B, K)).dtype == torch.float64


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("loss", bnce.LOSSES)
def test_narrow_parameters_leave_the_noise_alone(loss: str, dtype: torch.dtype) -> None:
    layer = build(loss).to(dtype)
    assert layer.weight.dtype == dtype
    torch.testing.assert_close(layer.noise.log_probs_V, build().noise.log_probs_V, rtol=0, atol=0)
    hidden, targets = hidden_and_targets()
    found = drawn_alike(layer, hidden.to(dtype), targets)
    found.backward()
    assert found.dtype == torch.float32
    # What a layer of wide numbers makes of the same narrow ones.
    wide = build(loss)
    wide.load_state_dict({name: value.float() for name, value in layer.state_dict().items()})
    expected = drawn_alike(wide, hidden.to(dtype).float(), targets)
    assert found.item() == pytest.approx(expected.item(), rel=torch.finfo(dtype).eps)


def test_noise_comes_back_from_a_narrow_type_as_it_was() -> None:
    noise = bnce.noise.unigram(COUNTS)
    before = {name: buffer.clone() for name, buffer in noise.named_buffers()}
    for dtype in (torch.bfloat16, torch.float64, torch.float16, torch.float32):
        noise.to(dtype)
    for name, buffer in noise.named_buffers():
        assert torch.equal(buffer, before[name].to(buffer.dtype))
    assert len(noise) == V


def test_autocast_does_not_round_the_scores_of_given_words() -> None:
    layer = build("bnce")
    hidden, targets = hidden_and_targets()
    with torch.no_grad():
        expected = layer.log_probs(hidden, targets, normalised=False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = layer.log_probs(hidden, targets, normalised=False)
    assert torch.equal(found, expected)
