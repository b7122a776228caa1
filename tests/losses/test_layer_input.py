"""What an output layer is called with: types of targets and hidden states, masks, and shapes of any number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from making import draws_all, layer_of
from torch import Tensor

from bnce import LOSSES, OutputLayer, UserError

V, D, T, B, K = 20, 4, 3, 5, 7
COUNTS = torch.arange(1, V + 1)


def build(loss: str = "bnce", **options: Any) -> OutputLayer:
    torch.manual_seed(1)
    if draws_all(loss):
        options.setdefault("num_noise", K)
    return layer_of(D, V, COUNTS, loss, **options)


def hidden_and_targets() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(T, B, D, generator=generator), torch.randint(V, (T, B), generator=generator)


def refusal(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("loss", LOSSES)
def test_word_ids_may_be_whole_numbers_of_any_width(loss: str, dtype: torch.dtype) -> None:
    """As an index, uint8 would be a mask."""
    layer, (hidden, targets) = build(loss), hidden_and_targets()
    found = []
    for given in (targets, targets.to(dtype)):
        torch.manual_seed(7)
        found.append((layer(hidden, given), layer.log_probs(hidden, given), layer.normalise(hidden, given)[1]))
    for expected, value in zip(*found, strict=True):
        assert torch.equal(value, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_word_ids_are_whole_numbers(dtype: torch.dtype) -> None:
    layer, (hidden, targets) = build(), hidden_and_targets()
    for call, name in ((layer, "targets"), (layer.log_probs, "words")):
        assert refusal(call, hidden, targets.to(dtype)) == (
            f"{name} are of the type {dtype}: give word ids as whole numbers, such as {name}.long()."
        )


def test_what_is_no_tensor_of_numbers_is_refused() -> None:
    layer, (hidden, targets) = build(), hidden_and_targets()
    assert refusal(layer, hidden, targets.numpy()) == "targets are a ndarray: give a tensor of word ids."
    assert refusal(layer, hidden.numpy(), targets) == (
        "hidden is of the type ndarray: give a tensor of floating-point numbers."
    )
    assert refusal(layer.log_probs, hidden.long(), targets) == (
        "hidden is of the type torch.int64: give a tensor of floating-point numbers."
    )
    assert refusal(layer, hidden, targets, np.ones((T, B))) == (
        "mask is a ndarray: give a tensor of the shape of targets."
    )


def test_a_mask_has_no_weights() -> None:
    layer, (hidden, targets) = build(), hidden_and_targets()
    mask = (torch.rand(T, B, generator=torch.Generator().manual_seed(3)) > 0.3).float()
    assert torch.equal(layer(hidden, targets, mask), layer(hidden, targets, mask.bool()))
    assert refusal(layer, hidden, targets, mask * 0.5) == (
        "The mask holds 0.5: give 1 where a position counts and 0 elsewhere. For weights, use "
        'reduction="none" and multiply the losses by them.'
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("loss", LOSSES)
def test_hidden_states_may_be_of_another_type_than_the_layer(loss: str, dtype: torch.dtype) -> None:
    """They are cast to the layer's type, so the answers are those of the same numbers in it."""
    layer, (hidden, targets) = build(loss), hidden_and_targets()
    hidden = hidden.bfloat16()
    other = hidden.to(dtype).requires_grad_()
    torch.manual_seed(7)
    loss_value = layer(other, targets)
    loss_value.backward()
    assert other.grad is not None
    assert other.grad.dtype == dtype
    torch.manual_seed(7)
    assert torch.equal(loss_value, layer(hidden.float(), targets))
    for normalised in (False, True):
        found = layer.log_probs(other, targets, normalised=normalised)
        assert torch.equal(found, layer.log_probs(hidden.float(), targets, normalised=normalised))
    assert torch.equal(layer.all_scores(other), layer.all_scores(hidden.float()))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer.log_probs(other, targets), found, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("shape", [(), (6,), (T, 2), (2, 1, 3), (0, 2)])
@pytest.mark.parametrize("loss", LOSSES)
def test_scores_are_for_positions_in_any_number_of_dimensions(loss: str, shape: tuple[int, ...]) -> None:
    layer = build(loss)
    hidden = torch.randn(*shape, D, generator=torch.Generator().manual_seed(2))
    targets = torch.randint(V, shape, generator=torch.Generator().manual_seed(3))
    flat, flat_targets = hidden.reshape(-1, D), targets.reshape(-1)
    every = layer.all_scores(flat)
    assert torch.equal(layer.all_scores(hidden), every.reshape(*shape, V))
    assert torch.equal(layer.scores_between(hidden, 3, 9), layer.scores_between(flat, 3, 9).reshape(*shape, 6))
    normaliser = layer.log_normaliser(hidden)
    assert normaliser.shape == shape
    torch.testing.assert_close(normaliser, torch.logsumexp(every, 1).reshape(shape), rtol=1e-5, atol=1e-5)
    words = targets.unsqueeze(-1).expand(*shape, 2)
    torch.testing.assert_close(layer.scores(hidden, words)[..., 1], every.gather(1, flat_targets[:, None]).view(shape))
    found = layer.normalise(hidden, targets)
    assert torch.equal(found[0], normaliser)
    torch.testing.assert_close(found[1], layer.scores(hidden, words)[..., 0])
    torch.testing.assert_close(layer.log_probs(hidden, targets), found[1] - found[0])


@pytest.mark.parametrize("loss", ["bnce", "adaptive-softmax"])
def test_positions_that_do_not_fit_are_refused(loss: str) -> None:
    layer, (hidden, targets) = build(loss), hidden_and_targets()
    for call in (layer.log_normaliser, layer.all_scores):
        assert refusal(call, hidden[..., :3]) == f"hidden ({T}, {B}, 3) does not fit: give (…, {D})."
    for call in (layer.scores, layer.log_probs, layer.normalise):
        assert refusal(call, hidden, targets.t()) == (
            f"hidden ({T}, {B}, {D}) and words ({B}, {T}) do not fit: give (…, {D}) with (…) or (…, k)."
        )
