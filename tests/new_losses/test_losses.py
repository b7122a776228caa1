"""Every loss against the layer it replaces, in float64: losses of positions, sum, mean and uneven weights, with gradients.

Legend: T time steps, B streams, N positions, D hidden, V vocabulary, K drawn words.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import bnce
from bnce.new_losses import adaptive_softmax, batch_nce, chunk, sampled_nce, sampled_softmax, scored, softmax
from bnce.new_losses.loss import OutputBatch, count_steps, count_streams

T, B, D, V, K = 3, 5, 6, 23, 4
COUNTS = torch.arange(1, V + 1)
UNIFORM = bnce.noise.uniform(V)
DIFFERENT = bnce.noise.unigram(COUNTS).tries(K)
NARROW = (torch.bfloat16, torch.float16)
Losses = Callable[[OutputBatch, Any], Tensor]

# name: (the loss, its record, the old layer's arguments, where its noise comes from)
CASES: dict[str, tuple[Losses, Any, dict[str, Any], str]] = {
    "bnce": (batch_nce.batch_nce, SimpleNamespace(num_noise=0), {"loss": "bnce"}, "step"),
    "adaptive bnce": (batch_nce.batch_nce, SimpleNamespace(num_noise=K), {"loss": "bnce", "num_noise": K}, "step"),
    "mixture": (
        batch_nce.batch_nce,
        SimpleNamespace(num_noise=K),
        {"loss": "bnce", "num_noise": K, "drawn": UNIFORM},
        "step",
    ),
    "chunk-bnce": (chunk.chunk, SimpleNamespace(beta=1.0, penalty=0.0), {"loss": "chunk-bnce"}, "chunk"),
    "chunk-softmax": (
        chunk.chunk,
        SimpleNamespace(beta=0.0, penalty=0.3),
        {"loss": "chunk-softmax", "penalty": 0.3},
        "chunk",
    ),
    "softmax": (softmax.softmax, SimpleNamespace(penalty=0.0), {"loss": "softmax"}, "none"),
    "self-normalised-softmax": (
        softmax.softmax,
        SimpleNamespace(penalty=0.3),
        {"loss": "self-normalised-softmax", "penalty": 0.3},
        "none",
    ),
    "nce": (sampled_nce.nce, SimpleNamespace(num_noise=K), {"loss": "nce", "num_noise": K}, "none"),
    "snce": (sampled_nce.shared_nce, SimpleNamespace(num_noise=K), {"loss": "snce", "num_noise": K}, "none"),
    "sampled-softmax": (
        sampled_softmax.sampled_softmax,
        SimpleNamespace(num_noise=K),
        {"loss": "sampled-softmax", "num_noise": K},
        "none",
    ),
    "different words": (
        sampled_softmax.sampled_softmax,
        SimpleNamespace(num_noise=K),
        {"loss": "sampled-softmax", "num_noise": K, "replacement": False},
        "none",
    ),
    "adaptive-softmax": (
        adaptive_softmax.adaptive_softmax,
        SimpleNamespace(),
        {"loss": "adaptive-softmax", "cutoffs": [5, 12]},
        "none",
    ),
}
FIRST_ORDER = [name for name in CASES if name not in ("nce", "snce")]
MASKS: dict[str, Tensor | None] = {
    "all": None,
    "holes": torch.tensor([[1, 1, 0, 1, 1], [0, 1, 1, 1, 0], [1, 1, 1, 1, 1]]).bool(),
    "one alone in its step": torch.tensor([[1, 1, 0, 1, 1], [0, 0, 1, 0, 0], [1, 1, 1, 1, 0]]).bool(),
    "one stream": torch.tensor([[0, 1, 0, 0, 0]] * 3).bool(),
    "nothing": torch.zeros(T, B, dtype=torch.bool),
}
WEIGHTS = {
    "sum": lambda loss, count: loss.sum(),
    "mean": lambda loss, count: loss.sum() / count,
    "uneven": lambda loss, count: (loss * torch.linspace(-1, 2, loss.numel(), dtype=loss.dtype).view_as(loss)).sum(),
}


@pytest.fixture(params=["one block", "several blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "several blocks":
        for limits in (scored.MAX_SCORES, scored.MAX_LOGITS):
            monkeypatch.setitem(limits, "cpu", 40)


def build(name: str, *, sparse: bool = False, dtype: torch.dtype = torch.float64, **options: Any) -> bnce.OutputLayer:
    """Make the old layer, away from its start."""
    torch.manual_seed(1)
    given = CASES[name][2]
    learns = name != "adaptive-softmax" and name != "softmax"
    layer = bnce.OutputLayer(D, V, COUNTS, **given, learn_log_z=learns, sparse=sparse, dtype=dtype, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += (0.5 * torch.randn(parameter.shape, dtype=torch.float64)).to(dtype)
    return layer


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Make hidden states that want a gradient, and targets, many of them equal."""
    generator = torch.Generator().manual_seed(2)
    hidden_TBD = torch.randn(T, B, D, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    target_TB = torch.randint(9, (T, B), generator=generator)
    target_TB[0, :3], target_TB[1, 0] = 20, 20
    return hidden_TBD, target_TB


def states(layer: bnce.OutputLayer, name: str) -> Any:
    """Give what a layer keeps for its loss; the exact layer has the parameters of the old one."""
    if layer.structure is None:
        return layer.drawn if layer.drawn is not None else layer.tries
    exact = adaptive_softmax.AdaptiveSoftmax(D, layer.noise, cutoffs=CASES[name][2]["cutoffs"])
    for own, old in zip(exact.tails, layer.structure.tails, strict=True):
        own.projection, own.weight, own.bias = old.projection, old.weight, old.bias
    return exact


def compute(
    name: str,
    layer: bnce.OutputLayer,
    hidden_TBD: Tensor,
    target_TB: Tensor,
    mask_TB: Tensor | None = None,
    stream_TB: Tensor | None = None,
    state: Any = None,
) -> Tensor:
    """Compute the new loss of every position with the parameters of an old layer."""
    loss, record, _, _ = CASES[name]
    torch.manual_seed(7)
    return loss(
        OutputBatch(
            hidden_TBD,
            target_TB,
            mask_TB,
            stream_TB,
            layer.weight,
            layer.bias,
            layer.log_z,
            layer.noise,
            layer.sparse,
            states(layer, name) if state is None else state,
        ),
        record,
    )


def count(name: str, target_TB: Tensor, mask_TB: Tensor | None, stream_TB: Tensor | None = None) -> int:
    """Count the positions that are trained on, as a layer does for its mean."""
    _, record, _, noise = CASES[name]
    valid_TB = mask_TB
    if noise == "step":
        valid_TB = count_steps(mask_TB, target_TB, record.num_noise, torch.float64).valid_TB
    if noise == "chunk":
        valid_TB = count_streams(mask_TB, target_TB, stream_TB, torch.float64).valid_TB
    return target_TB.numel() if valid_TB is None else max(1, int(valid_TB.sum()))


def gradients(loss: Tensor, hidden_TBD: Tensor, layer: bnce.OutputLayer) -> list[Tensor]:
    leaves = [hidden_TBD, *layer.parameters()]
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [
        torch.zeros_like(leaf) if grad is None else grad.to_dense() for leaf, grad in zip(leaves, found, strict=True)
    ]


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    scale = max(float(part.detach().abs().max()) for part in wanted) if wanted[0].numel() else 1.0
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12 * max(1.0, scale))


@pytest.mark.filterwarnings("ignore:.*takes the other targets of the batch as noise:UserWarning")
@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_old_layer(name: str, mask: str, sparse: bool) -> None:
    mask_TB, (hidden_TBD, target_TB) = MASKS[mask], inputs()
    layer = build(name, sparse=sparse, reduction="none")
    torch.manual_seed(7)
    old_TB = layer(hidden_TBD, target_TB, mask_TB)
    given_TB = target_TB if mask_TB is None else target_TB.where(mask_TB, -100)
    new_TB = compute(name, layer, hidden_TBD, given_TB, mask_TB)
    assert_same([new_TB], [old_TB])
    num_positions = count(name, target_TB, mask_TB)
    for weigh in WEIGHTS.values():
        new = gradients(weigh(compute(name, layer, hidden_TBD, given_TB, mask_TB), num_positions), hidden_TBD, layer)
        torch.manual_seed(7)
        assert_same(new, gradients(weigh(layer(hidden_TBD, target_TB, mask_TB), num_positions), hidden_TBD, layer))
    mean = build(name, reduction="mean")
    torch.manual_seed(7)
    torch.testing.assert_close(new_TB.sum() / num_positions, mean(hidden_TBD, target_TB, mask_TB), rtol=1e-12, atol=0)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("mask", [None, "holes"])
@pytest.mark.parametrize("name", ["chunk-bnce", "chunk-softmax"])
def test_ragged_streams_equal_the_old_layer(name: str, mask: str | None, sparse: bool) -> None:
    hidden_TBD, target_TB = inputs()
    hidden_1ND, target_1N = hidden_TBD.detach().flatten(0, 1).unsqueeze(0).requires_grad_(), target_TB.view(1, -1)
    stream_1N = torch.tensor([4, 4, 4, 9, 9, 9, 9, 9, -7, -7, 2**40, 2**40, 3, 4, 4]).view(1, -1)
    mask_1N = None if mask is None else MASKS[mask].view(1, -1)  # type: ignore[union-attr]
    layer = build(name, sparse=sparse, reduction="none")
    old_N = layer(hidden_1ND, target_1N, mask_1N, streams=stream_1N)
    assert_same([compute(name, layer, hidden_1ND, target_1N, mask_1N, stream_1N)], [old_N])
    for weigh in WEIGHTS.values():
        new = compute(name, layer, hidden_1ND, target_1N, mask_1N, stream_1N)
        old = layer(hidden_1ND, target_1N, mask_1N, streams=stream_1N)
        assert_same(gradients(weigh(new, 15), hidden_1ND, layer), gradients(weigh(old, 15), hidden_1ND, layer))
    with monkeypatched_compiling():  # the columns that compiled code has
        fixed = compute(name, layer, hidden_1ND, target_1N, mask_1N, stream_1N)
        assert_same([fixed], [old_N])
        assert_same(gradients(fixed.sum(), hidden_1ND, layer), gradients(old_N.sum(), hidden_1ND, layer))


class monkeypatched_compiling:  # noqa: N801 (used as a function)
    """Let losses believe that they are compiled: shapes do not depend on the data then."""

    def __enter__(self) -> None:
        self.before = torch.compiler.is_compiling
        torch.compiler.is_compiling = lambda: True

    def __exit__(self, *_: object) -> None:
        torch.compiler.is_compiling = self.before


@pytest.mark.filterwarnings("ignore:.*takes the other targets of the batch as noise:UserWarning")
@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", CASES)
def test_fixed_shapes_change_nothing(name: str, mask: str) -> None:
    mask_TB, (hidden_TBD, target_TB), layer = MASKS[mask], inputs(), build(name)
    plain_TB = compute(name, layer, hidden_TBD, target_TB, mask_TB)
    with monkeypatched_compiling():
        fixed_TB = compute(name, layer, hidden_TBD, target_TB, mask_TB)
        assert_same([fixed_TB], [plain_TB])
        for weigh in WEIGHTS.values():
            found = gradients(weigh(compute(name, layer, hidden_TBD, target_TB, mask_TB), 1), hidden_TBD, layer)
            plain = compute(name, layer, hidden_TBD, target_TB, mask_TB)
            assert_same(found, gradients(weigh(plain, 1), hidden_TBD, layer))
