"""The chunked cross entropy against its plain twin and against float64.

The tolerance is measured: the fast form may be at most four times as wrong as the plain one, plus one unit of rounding
of the largest number compared.

Legend: N positions, D hidden, V vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bnce import LOSSES, OutputBatch, UserError
from bnce.losses import compute
from bnce.losses.softmax import chunked_cross_entropy, cross_entropies
from tests.losses import reference

# `bnce.losses.softmax` is the function; this is the file it is in.
softmax_file = sys.modules[chunked_cross_entropy.__module__]

N, D, V = 13, 6, 37
EPS = torch.finfo(torch.float32).eps
CHUNKS = [1, V, 5 * V, 13 * V, 1000 * V]  # one position at a time (twice), an odd last chunk, all at once (twice)
Loss = Callable[..., Tensor]


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(4)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    hidden_ND, weight_VD, bias_V = normal(N, D), normal(V, D), normal(V)
    target_N = torch.randint(V, (N,), generator=generator)
    target_N[1] = target_N[0]
    return hidden_ND, weight_VD, bias_V, target_N


def loss_and_gradients(loss: Loss, arguments: tuple[Tensor, ...], valid_N: Tensor | None) -> list[Tensor]:
    *parameters, target_N = arguments
    leaves = [parameter.detach().clone().requires_grad_() for parameter in parameters]
    value = loss(*leaves, target_N, valid_N)
    (3 * value).backward()  # the incoming gradient must be multiplied in
    return [value.detach(), *(leaf.grad for leaf in leaves)]


def reference_form(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, target_N: Tensor, valid_N: Tensor) -> Tensor:
    kept = slice(None) if valid_N is None else valid_N
    return reference.softmax_loss(hidden_ND[kept], weight_VD, bias_V, target_N[kept])


def cross_entropy(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, target_N: Tensor, valid_N: Tensor | None
) -> Tensor:
    """Sum the plain twin over the positions that count."""
    loss_N = cross_entropies(hidden_ND, weight_VD, bias_V, target_N)
    return loss_N.sum() if valid_N is None else torch.where(valid_N, loss_N, 0.0).sum()


def set_chunk(monkeypatch: pytest.MonkeyPatch, max_logits: int) -> None:
    monkeypatch.setattr(softmax_file, "MAX_LOGITS", {"cpu": max_logits})


@pytest.mark.parametrize("max_logits", CHUNKS)
@pytest.mark.parametrize("masked", [False, True])
def test_equals_plain_and_float64(monkeypatch: pytest.MonkeyPatch, max_logits: int, masked: bool) -> None:
    set_chunk(monkeypatch, max_logits)
    arguments = inputs()
    valid_N = torch.arange(N) % 3 != 1 if masked else None
    doubled = tuple(part.double() if part.is_floating_point() else part for part in arguments)
    exact = loss_and_gradients(reference_form, doubled, valid_N)
    plain = loss_and_gradients(cross_entropy, arguments, valid_N)
    fast = loss_and_gradients(chunked_cross_entropy, arguments, valid_N)
    for found, twin, expected in zip(fast, plain, exact, strict=True):
        allowed = 4 * (twin - expected).abs().max() + EPS * expected.abs().max()
        assert (found - expected).abs().max() <= allowed


@pytest.mark.parametrize("max_logits", CHUNKS)
def test_float64_gradients_are_exact(monkeypatch: pytest.MonkeyPatch, max_logits: int) -> None:
    set_chunk(monkeypatch, max_logits)
    arguments = inputs(torch.float64)
    valid_N = torch.arange(N) != 4
    found = loss_and_gradients(chunked_cross_entropy, arguments, valid_N)
    expected = loss_and_gradients(reference_form, arguments, valid_N)
    torch.testing.assert_close(found[1:], expected[1:], rtol=1e-12, atol=1e-13)


def test_large_logits_stay_finite() -> None:
    hidden_ND, weight_VD, bias_V, target_N = inputs()
    loss = chunked_cross_entropy(hidden_ND * 1e4, weight_VD, bias_V, target_N)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(hidden_ND.grad).all()


@pytest.mark.parametrize("max_logits", [V, 1000 * V])
def test_autocast_rounds_the_products_only(monkeypatch: pytest.MonkeyPatch, max_logits: int) -> None:
    """Under bf16 both twins round the same product; what is made from it stays float32."""
    set_chunk(monkeypatch, max_logits)
    arguments = inputs()
    exact = loss_and_gradients(cross_entropy, arguments, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = loss_and_gradients(cross_entropy, arguments, None)
        fast = loss_and_gradients(chunked_cross_entropy, arguments, None)
    for found, twin, expected in zip(fast, plain, exact, strict=True):
        assert found.dtype == torch.float32
        worst = (found - expected).abs().max()
        assert worst <= 2 * (twin - expected).abs().max()
        assert worst > EPS * expected.abs().max(), "bf16 was not used"


def test_a_bfloat16_layer_makes_its_probabilities_in_float32() -> None:
    """Each hidden row picks one column of the weight, so that the logits themselves are not rounded."""
    _, weight_VD, _, target_N = inputs(torch.bfloat16)
    hidden_ND, bias_V = torch.eye(D, dtype=torch.bfloat16), torch.zeros(V, dtype=torch.bfloat16)
    loss = chunked_cross_entropy(hidden_ND, weight_VD, bias_V, target_N[:D])
    expected = reference.softmax_loss(hidden_ND, weight_VD, bias_V, target_N[:D])
    assert loss.item() == pytest.approx(expected.item(), rel=4 * EPS)


def test_no_gradient_is_made_where_none_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluation must not pay for a gradient the size of the weight."""
    arguments = inputs()
    expected = chunked_cross_entropy(*arguments).item()

    def refuse(*arguments: object, **options: object) -> Tensor:
        raise AssertionError("a gradient was allocated")

    monkeypatch.setattr(torch, "empty_like", refuse)
    with torch.no_grad():
        assert chunked_cross_entropy(*arguments).item() == expected
    with pytest.raises(AssertionError, match="allocated"):
        chunked_cross_entropy(*arguments)


def test_second_derivatives_are_refused_instead_of_wrong() -> None:
    hidden_ND, weight_VD, bias_V, target_N = inputs()
    loss = chunked_cross_entropy(hidden_ND, weight_VD, bias_V, target_N)
    with pytest.raises(UserError, match="no second derivatives"):
        torch.autograd.grad(loss.square(), hidden_ND, create_graph=True)


def test_no_positions_are_no_loss() -> None:
    hidden_ND, weight_VD, bias_V, target_N = inputs()
    assert chunked_cross_entropy(hidden_ND[:0], weight_VD, bias_V, target_N[:0]).item() == 0.0


def test_the_loss_by_name_sums_over_valid_positions(make_batch: Callable[..., OutputBatch]) -> None:
    valid_TB = torch.tensor([[True, False, True], [True, True, False]])
    batch = make_batch(2, 3, valid_TB=valid_TB)
    expected = reference.softmax_loss(
        batch.hidden_TBD[valid_TB], batch.weight_VD, batch.bias_V, batch.target_TB[valid_TB]
    )
    assert compute(LOSSES["softmax"]()).total(batch).item() == pytest.approx(expected.item(), rel=1e-6)
