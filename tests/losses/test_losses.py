"""Every loss against its equation in float64: losses of positions, sums, means, uneven weights, gradients.

Legend: T time steps, B streams, N positions, D hidden, V vocabulary, K drawn words.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from making import layer_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import bnce
from bnce import UserError
from bnce.losses import scored
from bnce.losses.loss import OutputBatch, Words
from tests.losses import reference

T, B, D, V, K = 3, 5, 6, 23, 4
COUNTS = torch.arange(1, V + 1)
UNIFORM = bnce.noise.uniform(V)
NARROW = (torch.bfloat16, torch.float16)

# Each with what a layer takes for it.
CASES: dict[str, dict[str, Any]] = {
    "bnce": {"loss": "bnce"},
    "adaptive bnce": {"loss": "bnce", "num_noise": K},
    "mixture": {"loss": "bnce", "num_noise": K, "drawn": UNIFORM},
    "chunk-bnce": {"loss": "chunk-bnce"},
    "chunk-softmax": {"loss": "chunk-softmax", "penalty": 0.3},
    "chunk": {"loss": "chunk", "beta": 0.3, "penalty": 0.2},
    "softmax": {"loss": "softmax"},
    "self-normalised-softmax": {"loss": "self-normalised-softmax", "penalty": 0.3},
    "nce": {"loss": "nce", "num_noise": K},
    "snce": {"loss": "snce", "num_noise": K},
    "sampled-softmax": {"loss": "sampled-softmax", "num_noise": K},
    "different words": {"loss": "sampled-softmax", "num_noise": K, "replacement": False},
    "adaptive-softmax": {"loss": "adaptive-softmax", "cutoffs": [5, 12]},
}
CHUNKS = ("chunk-bnce", "chunk-softmax", "chunk")
WITHOUT_A_CONSTANT = ("softmax", "sampled-softmax", "different words", "adaptive-softmax")
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
        for limits in (scored.MAX_SCORES, scored.MAX_EXACT, scored.MAX_LOGITS):
            monkeypatch.setitem(limits, "cpu", 40)


def build(name: str, *, sparse: bool = False, dtype: torch.dtype = torch.float64, **options: Any) -> bnce.OutputLayer:
    """Make a layer away from its start."""
    torch.manual_seed(1)
    learns = {} if name in WITHOUT_A_CONSTANT else {"learn_log_z": True}
    layer = layer_of(D, V, COUNTS, **CASES[name], **learns, sparse=sparse, dtype=dtype, **options)
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


def compute(
    layer: bnce.OutputLayer,
    hidden_TBD: Tensor,
    target_TB: Tensor,
    mask_TB: Tensor | None = None,
    stream_TB: Tensor | None = None,
) -> Tensor:
    """Compute the loss of every position."""
    torch.manual_seed(7)
    return layer._compute(layer._batch(hidden_TBD, target_TB, mask_TB, stream_TB), layer._settings)


def expected(layer: bnce.OutputLayer, *given: Tensor | None) -> Tensor:
    """Compute the same by the equation."""
    torch.manual_seed(7)
    return reference.losses(layer, *given)  # type: ignore[arg-type]


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


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", CASES)
def test_equals_its_equation(name: str, mask: str, sparse: bool) -> None:
    mask_TB, (hidden_TBD, target_TB), layer = MASKS[mask], inputs(), build(name, sparse=sparse)
    given_TB = target_TB if mask_TB is None else target_TB.where(mask_TB, -100)
    found_TB, expected_TB = (
        compute(layer, hidden_TBD, given_TB, mask_TB),
        expected(layer, hidden_TBD, given_TB, mask_TB),
    )
    assert_same([found_TB], [expected_TB])
    num_positions = max(1, int((expected_TB != 0).sum()))
    for weigh in WEIGHTS.values():
        loss = weigh(compute(layer, hidden_TBD, given_TB, mask_TB), num_positions)
        wanted = weigh(expected(layer, hidden_TBD, given_TB, mask_TB), num_positions)
        assert_same(gradients(loss, hidden_TBD, layer), gradients(wanted, hidden_TBD, layer))
    for reduction, loss in (("mean", expected_TB.sum() / num_positions), ("sum", expected_TB.sum())):
        layer.reduction = reduction
        torch.manual_seed(7)
        torch.testing.assert_close(layer(hidden_TBD, given_TB, mask_TB), loss, rtol=1e-12, atol=0)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("mask", [None, "holes"])
@pytest.mark.parametrize("name", CHUNKS)
def test_ragged_streams_equal_the_equation(name: str, mask: str | None, sparse: bool) -> None:
    hidden_TBD, target_TB = inputs()
    hidden_1ND, target_1N = hidden_TBD.detach().flatten(0, 1).unsqueeze(0).requires_grad_(), target_TB.view(1, -1)
    stream_1N = torch.tensor([4, 4, 4, 9, 9, 9, 9, 9, -7, -7, 2**40, 2**40, 3, 4, 4]).view(1, -1)
    mask_1N = None if mask is None else MASKS[mask].view(1, -1)  # type: ignore[union-attr]
    layer = build(name, sparse=sparse)
    given = hidden_1ND, target_1N, mask_1N, stream_1N
    expected_1N = expected(layer, *given)
    assert_same([compute(layer, *given)], [expected_1N])
    for weigh in WEIGHTS.values():
        wanted = gradients(weigh(expected(layer, *given), 15), hidden_1ND, layer)
        assert_same(gradients(weigh(compute(layer, *given), 15), hidden_1ND, layer), wanted)
    with monkeypatched_compiling():  # the columns that compiled code has
        fixed_1N = compute(layer, *given)
        assert_same([fixed_1N], [expected_1N])
        assert_same(gradients(fixed_1N.sum(), hidden_1ND, layer), gradients(expected_1N.sum(), hidden_1ND, layer))


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
    plain_TB = compute(layer, hidden_TBD, target_TB, mask_TB)
    with monkeypatched_compiling():
        fixed_TB = compute(layer, hidden_TBD, target_TB, mask_TB)
        assert_same([fixed_TB], [plain_TB])
        for weigh in WEIGHTS.values():
            found = gradients(weigh(compute(layer, hidden_TBD, target_TB, mask_TB), 1), hidden_TBD, layer)
            plain = compute(layer, hidden_TBD, target_TB, mask_TB)
            assert_same(found, gradients(weigh(plain, 1), hidden_TBD, layer))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what PyTorch's compiler does to itself
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_loss_is_one_graph(name: str) -> None:
    """Of any batch size, where no words are drawn."""
    torch._dynamo.reset()
    layer = build(name)
    may_change = "num_noise" not in CASES[name] and name != "adaptive-softmax"

    def step(hidden_TBD: Tensor, target_TB: Tensor, mask_TB: Tensor | None) -> Tensor:
        return layer._compute(layer._batch(hidden_TBD, target_TB, mask_TB), layer._settings)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=may_change)
    for size in (B, B - 1):
        hidden_TBD, target_TB = inputs()
        hidden_TBD = hidden_TBD.detach()[:, :size].clone().requires_grad_()
        given = hidden_TBD, target_TB[:, :size].clone(), MASKS["one alone in its step"][:, :size].clone()
        results = []
        for call in (compiled, step):
            torch.manual_seed(7)
            loss_TB = call(*given)
            results.append([loss_TB, *gradients(WEIGHTS["uneven"](loss_TB, 7), hidden_TBD, layer)])
        assert_same(*results)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", ["parameters", "autocast"])
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", CASES)
def test_narrow_types_round_products_alone(name: str, dtype: torch.dtype, kind: str, sparse: bool) -> None:
    """The narrow numbers in float64 are what is compared with, so only products and gradients are rounded."""
    layer = build(name, sparse=sparse, dtype=dtype if kind == "parameters" else torch.float32)
    exact = build(name)
    exact.load_state_dict({key: value.double() for key, value in layer.state_dict().items()})
    hidden_TBD, target_TB = inputs(dtype)
    exact_hidden_TBD = hidden_TBD.detach().double().requires_grad_()
    mask_TB = MASKS["holes"]
    expected_TB = compute(exact, exact_hidden_TBD, target_TB, mask_TB)
    for weigh in WEIGHTS.values():
        with torch.autocast("cpu", dtype=dtype, enabled=kind == "autocast"):
            found_TB = compute(layer, hidden_TBD, target_TB, mask_TB)
        assert found_TB.dtype == torch.float32
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(
            found_TB.double(), expected_TB, rtol=0, atol=8 * eps * float(expected_TB.detach().max())
        )
        wanted = gradients(weigh(expected_TB, 7), exact_hidden_TBD, exact)
        found = gradients(weigh(found_TB, 7), hidden_TBD, layer)
        largest = max(float(part.abs().max()) for part in wanted)
        expected_TB = compute(exact, exact_hidden_TBD, target_TB, mask_TB)
        for own, other, leaf in zip(found, wanted, [hidden_TBD, *layer.parameters()], strict=True):
            assert own.dtype == leaf.dtype
            assert (own.double() - other).abs().max() <= 8 * eps * largest


# What the one Function does and does not do.


@pytest.mark.parametrize(("weigh", "visits"), [("sum", 1), ("mean", 1), ("uneven", 2)])
@pytest.mark.parametrize("mask", [None, "holes"])
@pytest.mark.parametrize("name", FIRST_ORDER)
def test_only_uneven_weights_need_a_second_visit(
    name: str, mask: str | None, weigh: str, visits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit, found = scored._visit, []
    monkeypatch.setattr(scored, "_visit", lambda *given: found.append(given) or visit(*given))
    hidden_TBD, target_TB = inputs()
    mask_TB = None if mask is None else MASKS[mask]
    WEIGHTS[weigh](compute(build(name), hidden_TBD, target_TB, mask_TB), 7).backward()
    tails = 2 if name == "adaptive-softmax" else 0  # of which one has no position, so no uneven weights
    assert len(found) == visits * (1 + tails) - (visits - 1) * tails // 2


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_are_right_or_refused(name: str) -> None:
    hidden_TBD, target_TB = inputs()
    loss = compute(build(name), hidden_TBD, target_TB).square().sum()
    if name in FIRST_ORDER:
        with pytest.raises(UserError, match="has no second derivatives, so create_graph=True cannot be used"):
            torch.autograd.grad(loss, hidden_TBD, create_graph=True)
    else:
        (grad,) = torch.autograd.grad(loss, hidden_TBD, create_graph=True)
        assert torch.autograd.grad(grad.sum(), hidden_TBD)[0].any()


@pytest.mark.parametrize("name", CASES)
def test_a_backward_pass_can_come_again(name: str) -> None:
    layer, (hidden_TBD, target_TB) = build(name), inputs()
    loss = compute(layer, hidden_TBD, target_TB).sum()
    (first,) = torch.autograd.grad(loss, hidden_TBD, retain_graph=True)
    assert_same([2 * first], [torch.autograd.grad(2 * loss, hidden_TBD)[0]])


@pytest.mark.parametrize("weigh", WEIGHTS)
@pytest.mark.parametrize("name", CASES)
def test_checkpointing_computes_the_same_again(name: str, weigh: str) -> None:
    layer, (hidden_TBD, target_TB) = build(name), inputs()

    def run(hidden_TBD: Tensor) -> Tensor:
        return compute(layer, torch.tanh(hidden_TBD), target_TB, MASKS["holes"])

    plain = gradients(WEIGHTS[weigh](run(hidden_TBD), 7), hidden_TBD, layer)
    again_TB = checkpoint(run, hidden_TBD, use_reentrant=False)
    for own, other in zip(gradients(WEIGHTS[weigh](again_TB, 7), hidden_TBD, layer), plain, strict=True):
        assert torch.equal(own, other)


@pytest.mark.filterwarnings("ignore:.*takes the other targets of the batch as noise:UserWarning")
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("shape", [(0, B), (T, 0), (1, 1), (T, 1), (1, B)])
@pytest.mark.parametrize("name", CASES)
def test_batches_of_nothing_or_of_little_have_gradients(name: str, shape: tuple[int, int], sparse: bool) -> None:
    layer = build(name, sparse=sparse)
    generator = torch.Generator().manual_seed(5)
    hidden_TBD = torch.randn(*shape, D, generator=generator, dtype=torch.float64).requires_grad_()
    target_TB = torch.randint(V, shape, generator=generator)
    for weigh in WEIGHTS.values():
        found_TB, expected_TB = compute(layer, hidden_TBD, target_TB), expected(layer, hidden_TBD, target_TB)
        assert found_TB.shape == shape
        assert_same([found_TB], [expected_TB])
        found = gradients(weigh(found_TB, 3), hidden_TBD, layer)
        assert_same(found, gradients(weigh(expected_TB, 3), hidden_TBD, layer))


class Largest(TorchDispatchMode):
    """Remembers the most numbers that any tensor had."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, tuple | list) else (result,):
            if isinstance(part, Tensor) and not part.is_sparse:
                self.most = max(self.most, part.untyped_storage().nbytes() // part.element_size())
        return result


@pytest.mark.parametrize("name", ["bnce", "chunk-bnce", "chunk-softmax", "softmax", "sampled-softmax"])
def test_uneven_weights_need_no_more_memory_than_a_block(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most a block, or what has the size of the hidden rows; never all scores, be it of one time step."""
    for limits in (scored.MAX_SCORES, scored.MAX_EXACT, scored.MAX_LOGITS):
        monkeypatch.setitem(limits, "cpu", 2000)
    layer = build(name)
    hidden_TBD = torch.randn(1, 300, D, dtype=torch.float64).requires_grad_()
    target_TB = torch.arange(300).view(1, -1) % V
    stream_TB = torch.arange(300).view(1, -1) % 2 if name in CHUNKS else None
    with Largest() as largest:
        WEIGHTS["uneven"](compute(layer, hidden_TBD, target_TB, None, stream_TB), 1).backward()
    assert largest.most <= 2100


@pytest.mark.parametrize("name", CASES)
def test_a_target_that_is_no_word_is_nan_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, whose host cannot wait to refuse it: it has no gradient, and is noise to nobody."""
    layer, (hidden_TBD, target_TB), mask_TB = build(name), inputs(), MASKS["holes"]
    wrong_TB = torch.zeros(T, B, dtype=torch.bool)
    wrong_TB[2, 1] = True
    assert mask_TB is not None
    left_out_TB = compute(layer, hidden_TBD, target_TB, mask_TB & ~wrong_TB)
    counts_TB = mask_TB.double().masked_fill(wrong_TB, torch.nan)
    monkeypatch.setattr(OutputBatch, "words", lambda batch: Words(batch.target_TB, counts_TB))
    with monkeypatched_compiling():
        found_TB = compute(layer, hidden_TBD, target_TB, mask_TB)
        assert torch.equal(found_TB.isnan(), wrong_TB)
        assert_same([found_TB.nan_to_num(0.0)], [left_out_TB])
        assert_same(gradients(found_TB.sum(), hidden_TBD, layer), gradients(left_out_TB.sum(), hidden_TBD, layer))


def test_a_tail_beyond_its_capacity_is_told_of() -> None:
    layer, (hidden_TBD, target_TB) = build("adaptive-softmax"), inputs()
    expected_TB = compute(layer, hidden_TBD, target_TB)
    layer.configure(capacities=[1, 1])
    assert compute(layer, hidden_TBD, target_TB).isnan().all()
    with pytest.raises(UserError, match=r"needed \d+ places in tail 2, more than capacities say \(1\)"):
        layer.check()
    layer.check()  # told once
    layer.configure(capacities=[T * B, T * B])
    assert_same([compute(layer, hidden_TBD, target_TB)], [expected_TB])


def test_a_target_that_dominates_leaves_the_noise_to_be_seen() -> None:
    """A target of 60 nats more than the noise: taken out of a sum that it is in, nothing would be left."""
    layer, (hidden_TBD, target_TB) = build("chunk-softmax", dtype=torch.float32), inputs(torch.float32)
    with torch.no_grad():
        layer.bias[20] += 60.0
    found_TB, expected_TB = compute(layer, hidden_TBD, target_TB), expected(layer, hidden_TBD, target_TB)
    torch.testing.assert_close(found_TB.double(), expected_TB, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_no_gradient_is_made_where_none_is_asked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, (hidden_TBD, target_TB) = build(name), inputs()
    expected_TB = compute(layer, hidden_TBD, target_TB)
    multiply, products = scored._multiply, []
    monkeypatch.setattr(scored, "_multiply", lambda *given, **more: products.append(0) or multiply(*given, **more))
    with torch.no_grad():
        assert torch.equal(compute(layer, hidden_TBD, target_TB), expected_TB)
    num_products = {"adaptive-softmax": 2, "nce": 0, "snce": 0}.get(name, 1)  # one of its tails has no targets
    assert len(products) == num_products
