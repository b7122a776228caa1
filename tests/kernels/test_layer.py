"""The whole layer through the fused losses against their plain forms, values and gradients."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence

import pytest
import torch
from making import layer_of
from torch import Tensor

from bnce import OutputLayer, RowwiseAdagrad, RowwiseAdam, UserError, clip_grad_norm_, kernels, noise, rows
from bnce.losses import chunk as chunk_loss
from bnce.losses import scored

T, B, D, V = 4, 5, 9, 30
IGNORED = -100
COUNTS = torch.arange(1, V + 1)
Check = Callable[[Tensor, Tensor, Tensor], None]


def make(device: torch.device, loss: str = "bnce", **settings: object) -> OutputLayer:
    layer = layer_of(D, V, COUNTS, loss=loss, **settings).to(device)  # type: ignore[arg-type]
    with torch.no_grad():
        layer.weight.normal_(std=0.5)
    return layer


def results(layer: OutputLayer, hidden: Tensor, *given: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    hidden = hidden.detach().to(layer.weight.dtype).requires_grad_()
    loss = layer(hidden, *given)
    (3 * loss).backward()
    grads = [hidden.grad, *(parameter.grad for parameter in layer.parameters())]
    assert all(grad is not None for grad in grads)
    return [loss.detach(), *(grad.to_dense() for grad in grads if grad is not None)]


def hold(layer: OutputLayer, no_worse: Check, hidden: Tensor, *given: Tensor) -> None:
    fast = results(copy.deepcopy(layer), hidden, *given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_HAS_TRITON", False)
        plain, exact = results(copy.deepcopy(layer), hidden, *given), results(layer.double(), hidden, *given)
    for parts in zip(fast, plain, exact, strict=True):
        no_worse(*parts)


@pytest.fixture
def chunk(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, targets with holes among them, and a mask; one position is alone in its step."""
    hidden, target = torch.randn(T, B, D, device=device), torch.randint(0, 12, (T, B), device=device)
    target[torch.rand(T, B, device=device) < 0.2] = IGNORED
    target[0] = torch.tensor([4] + [IGNORED] * (B - 1), device=device)
    return hidden, target, torch.rand(T, B, device=device) < 0.8


@pytest.mark.parametrize("drawn", [None, noise.unigram(COUNTS, power=0.5)])
def test_drawn_words_are_columns_of_every_step(
    drawn: object, chunk: tuple[Tensor, Tensor, Tensor], no_worse: Check
) -> None:
    hidden, target, mask = chunk
    layer = make(hidden.device, num_noise=3, drawn=drawn)
    hold(layer, no_worse, hidden, target, mask)


@pytest.mark.parametrize("loss", ["bnce", "chunk-bnce"])
def test_batches_first_and_rows_alone(loss: str, chunk: tuple[Tensor, Tensor, Tensor], no_worse: Check) -> None:
    hidden, target, _ = chunk
    layer = make(hidden.device, loss, batch_first=True, most=12)
    hold(layer, no_worse, hidden.transpose(0, 1), target.t())
    hold(make(hidden.device, loss, most=12), no_worse, hidden.flatten(0, 1), target.flatten())


def test_a_bound_by_the_noise_and_several_blocks(
    chunk: tuple[Tensor, Tensor, Tensor], no_worse: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, target, _ = chunk
    monkeypatch.setattr(chunk_loss, "MIN_MERGED", 1)
    for limits in (scored.MAX_SCORES, scored.MAX_EXACT):
        monkeypatch.setitem(limits, hidden.device.type, 7 * 128)  # seven positions at once
    hold(make(hidden.device, "chunk-bnce"), no_worse, hidden, target)


@pytest.mark.parametrize("loss", ["bnce", "chunk-bnce"])
def test_where_nothing_counts_the_mean_is_zero(loss: str, chunk: tuple[Tensor, Tensor, Tensor]) -> None:
    hidden, target, _ = chunk
    layer = make(hidden.device, loss, most=12)
    alone = torch.full_like(target, IGNORED)
    for row in (slice(0, 0), 0, slice(None)) if loss == "chunk-bnce" else (slice(0, 0), 0):
        alone[row, 2] = 7  # of one stream only: it finds no noise
        loss_and_gradients = results(copy.deepcopy(layer), hidden, alone)
        assert not any(part.any() for part in loss_and_gradients)


@pytest.mark.parametrize("loss", ["bnce", "chunk-bnce"])
def test_parameters_in_two_bytes(loss: str, chunk: tuple[Tensor, Tensor, Tensor]) -> None:
    hidden, target, _ = chunk
    layer = make(hidden.device, loss, sparse=True, most=12)
    exact = results(copy.deepcopy(layer), hidden, target)
    rounded = results(layer.to(torch.bfloat16), hidden, target)
    assert [part.dtype for part in rounded] == [torch.float32] + [torch.bfloat16] * 3
    for one, other in zip(rounded, exact, strict=True):
        assert float((one.float() - other).norm()) < 0.02 * float(other.norm())


@pytest.mark.parametrize("loss", ["bnce", "chunk-bnce"])
def test_parameters_in_eight_bytes_take_no_kernel(loss: str, chunk: tuple[Tensor, Tensor, Tensor]) -> None:
    """Kernels compute in float32."""
    hidden, target, _ = chunk
    layer = make(hidden.device, loss, sparse=True, most=12).double()
    found = results(copy.deepcopy(layer), hidden, target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_HAS_TRITON", False)
        expected = results(layer, hidden, target)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", ["bnce", "chunk-bnce"])
def test_frozen_tables_get_no_gradient(loss: str, chunk: tuple[Tensor, Tensor, Tensor]) -> None:
    hidden, target, _ = chunk
    layer = make(hidden.device, loss, most=12)
    expected = results(copy.deepcopy(layer), hidden, target)[1]
    made: list[Sequence[int]] = []
    with pytest.MonkeyPatch.context() as patch:
        plain = rows.table_gradient
        patch.setattr(
            scored,
            "table_gradient",
            lambda shape, *given, **sparse: made.append(shape) or plain(shape, *given, **sparse),
        )
        layer.weight.requires_grad_(False)
        hidden = hidden.detach().requires_grad_()
        (3 * layer(hidden, target)).backward()
    assert made == [(V,)]
    assert layer.weight.grad is None
    assert hidden.grad is not None
    assert torch.equal(hidden.grad, expected)


@pytest.mark.parametrize("loss", ["bnce", "chunk-bnce"])
def test_second_derivatives_are_refused(loss: str, chunk: tuple[Tensor, Tensor, Tensor]) -> None:
    hidden, target, _ = chunk
    layer = make(hidden.device, loss, most=12)
    hidden.requires_grad_()
    with pytest.raises(UserError, match="no second derivatives, so create_graph=True cannot be used"):
        torch.autograd.grad(layer(hidden, target), hidden, create_graph=True)


def wrong_step(layer: OutputLayer, target: Tensor) -> Tensor:
    hidden = torch.randn(*target.shape, D, device=target.device, requires_grad=True)
    loss = layer(hidden, target)
    loss.backward()
    if target.is_cuda:
        torch.cuda.synchronize()
    return loss.detach()


@pytest.mark.parametrize(
    ("most", "bound"), [(5, "max_distinct_targets says (5)"), (None, "targets that follow the noise have")]
)
def test_too_many_different_targets_are_told_later(
    most: int | None, bound: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_loss, "ROUND", 1)
    monkeypatch.setattr(chunk_loss, "MIN_MERGED", 1)
    layer = make(device, "chunk-bnce", most=most)
    monkeypatch.setattr(layer.noise, "max_distinct", lambda num_drawn: 5)
    target = torch.arange(T * B, device=device).reshape(T, B)
    assert wrong_step(layer, target % 5).isfinite()
    assert wrong_step(layer, target).isnan()
    layer._latest = target, None  # as on a GPU
    with pytest.raises(UserError, match=re.escape(f"had 20 different targets, more than {bound}, so its loss was NaN")):
        layer.check()
    assert wrong_step(layer, target % 5).isfinite()


@pytest.mark.filterwarnings("ignore:.*takes the other targets of the batch as noise:UserWarning")
@pytest.mark.parametrize("loss", ["bnce", "chunk-bnce"])
def test_a_batch_of_one_stream_has_no_loss(loss: str, chunk: tuple[Tensor, Tensor, Tensor]) -> None:
    hidden, target, mask = chunk
    layer = make(hidden.device, loss, most=12)
    for given in ((target[:, :1].clamp(min=0),), (target[:, :1], mask[:, :1])):
        assert not any(part.any() for part in results(copy.deepcopy(layer), hidden[:, :1], *given))
    assert layer.loss_sum(hidden[:, :1], target[:, :1].clamp(min=0)) == 0


def test_padding_names_no_other_words_in_a_gradient(device: torch.device) -> None:
    # An optimiser with momentum moves every row that is named, be it with zeros.
    layer = make(device, sparse=True)
    target = torch.tensor([[4, 5, 6], [7, 4, 5]], device=device)
    layer(torch.randn(2, 3, D, device=device), target).backward()
    for table in (layer.weight, layer.bias):
        assert table.grad is not None
        assert set(table.grad._indices().flatten().tolist()) == {4, 5, 6, 7}


@pytest.mark.filterwarnings("ignore:The loss .* takes the other targets of the batch as noise")
@pytest.mark.parametrize("optimiser", [RowwiseAdagrad, RowwiseAdam])
@pytest.mark.parametrize(("loss", "num_rows"), [("bnce", 0), ("bnce", 1), ("chunk-bnce", 0), ("chunk-bnce", 1)])
def test_a_batch_in_which_nothing_counts_changes_nothing(
    loss: str, num_rows: int, optimiser: type[RowwiseAdagrad | RowwiseAdam], device: torch.device
) -> None:
    """As the last batch of a loader may be: its sparse gradients may have no rows at all."""
    layer = make(device, loss, sparse=True)
    before = copy.deepcopy(layer.state_dict())
    steps = optimiser(layer.parameters(), lr=0.1)
    layer(torch.randn(num_rows, D, device=device), torch.randint(V, (num_rows,), device=device)).backward()
    clip_grad_norm_(layer.parameters(), 1.0)
    steps.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())
