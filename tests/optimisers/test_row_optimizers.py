"""Row-wise optimisers as `torch.optim` has them, against their formulas and in the ways people use them."""

from __future__ import annotations

import copy
import math
import re
import sys

import pytest
import torch
from torch import Tensor, nn

from bnce import RowwiseAdagrad, RowwiseAdam, UserError, clip_grad_norm_
from bnce.optimisers.rowwise import RowOptimizer

V, D = 11, 3
KINDS = (RowwiseAdagrad, RowwiseAdam)


def batches(num_steps: int = 6, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    """Words, some twice and some never, and gradients of their rows."""
    chance = torch.Generator().manual_seed(seed)
    return [
        (torch.randint(0, V - 2, (7,), generator=chance), torch.randn(7, D, generator=chance, dtype=torch.float64))
        for _ in range(num_steps)
    ]


def give_gradient(table: nn.Parameter, words: Tensor, values: Tensor, *, sparse: bool) -> None:
    grad = torch.sparse_coo_tensor(words.unsqueeze(0), values.to(table.dtype), table.shape, check_invariants=False)
    table.grad = grad if sparse else grad.to_dense()


def new_table(dtype: torch.dtype = torch.float64) -> nn.Parameter:
    return nn.Parameter(torch.randn(V, D, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(dtype))


def train(optimizer: torch.optim.Optimizer, table: nn.Parameter, *, sparse: bool, num_steps: int = 6) -> None:
    for words, values in batches(num_steps):
        give_gradient(table, words, values, sparse=sparse)
        optimizer.step()
        optimizer.zero_grad()


def by_formula_adagrad(rate: float, start: float) -> Tensor:
    table, total = new_table().detach().clone(), torch.full((V,), start, dtype=torch.float64)
    for words, values in batches():
        grad = torch.zeros(V, D, dtype=torch.float64).index_add_(0, words, values)
        total += grad.square().mean(1)
        table -= rate * grad / (total.sqrt() + 1e-8).unsqueeze(1)
    return table


def by_formula_adam(rate: float, beta2: float) -> Tensor:
    """Every row decays at every step."""
    table, square = new_table().detach().clone(), torch.zeros(V, dtype=torch.float64)
    for words, values in batches():
        grad = torch.zeros(V, D, dtype=torch.float64).index_add_(0, words, values)
        square = beta2 * square + (1 - beta2) * grad.square().mean(1)
        table -= rate * grad / (square.sqrt() + 1e-8).unsqueeze(1)
    return table


@pytest.mark.parametrize("sparse", [True, False])
def test_adagrad_is_its_formula(sparse: bool) -> None:
    table = new_table()
    train(RowwiseAdagrad([table], lr=0.3, initial_accumulator=0.1), table, sparse=sparse)
    assert torch.allclose(table, by_formula_adagrad(0.3, 0.1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("beta2", [0.0, 0.9, 0.99])
def test_adam_decays_with_every_step(sparse: bool, beta2: float) -> None:
    table = new_table()
    train(RowwiseAdam([table], lr=0.05, beta2=beta2), table, sparse=sparse)
    assert torch.allclose(table, by_formula_adam(0.05, beta2), rtol=1e-5, atol=1e-6)
    assert torch.equal(table[V - 2 :], new_table()[V - 2 :]), "rows without a gradient stay"


@pytest.mark.parametrize("kind", KINDS)
def test_sparse_and_dense_steps_may_take_turns(kind: type[torch.optim.Optimizer]) -> None:
    tables = [new_table(), new_table()]
    for number, table in enumerate(tables):
        optimizer = kind([table], lr=0.1)
        for step, (words, values) in enumerate(batches()):
            give_gradient(table, words, values, sparse=number == 0 or step % 2 == 0)
            optimizer.step()
    assert torch.allclose(tables[0], tables[1], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_dict_goes_on_to_the_bit(kind: type[torch.optim.Optimizer], dtype: torch.dtype) -> None:
    unbroken = new_table(dtype)
    optimizer = kind([unbroken], lr=0.1)
    train(optimizer, unbroken, sparse=True, num_steps=3)
    kept, table = copy.deepcopy(optimizer.state_dict()), nn.Parameter(unbroken.detach().clone())
    train(optimizer, unbroken, sparse=True)
    other = kind([table], lr=7.0)
    other.load_state_dict(kept)
    assert {value.dtype for value in other.state[table].values()} <= {torch.float32, torch.int32, torch.int64}
    train(other, table, sparse=True)
    assert torch.equal(table, unbroken)


def test_adam_counts_beyond_what_float32_can() -> None:
    table = new_table(torch.float32)
    optimizer = RowwiseAdam([table])
    train(optimizer, table, sparse=True, num_steps=1)
    optimizer.state[table]["step"].fill_(2**24)
    train(optimizer, table, sparse=True, num_steps=1)
    assert int(optimizer.state[table]["step"]) == 2**24 + 1


@pytest.mark.parametrize("kind", KINDS)
def test_groups_schedulers_and_closures(kind: type[torch.optim.Optimizer]) -> None:
    first, second = new_table(), new_table()
    optimizer = kind([{"params": [first]}, {"params": [second], "lr": 0.0}], lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = first.square().sum() + second.square().sum()
        loss.backward()
        return loss.detach()

    before = float(closure())
    assert float(optimizer.step(closure)) == pytest.approx(before)
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.0]
    assert torch.equal(second, new_table())
    assert not torch.equal(first, new_table())


@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_may_be_a_tensor(kind: type[torch.optim.Optimizer]) -> None:
    tables = [new_table(), new_table()]
    train(kind([tables[0]], lr=0.1), tables[0], sparse=True)
    train(kind([tables[1]], lr=torch.tensor(0.1, dtype=torch.float64)), tables[1], sparse=True)
    assert torch.allclose(tables[0], tables[1], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_clipping_counts_equal_rows_once(kind: type[RowOptimizer]) -> None:
    table, body = new_table(), nn.Parameter(torch.ones(4, dtype=torch.float64))
    words, values = batches()[0]
    give_gradient(table, words, values, sparse=True)
    body.grad = torch.full((4,), 2.0, dtype=torch.float64)
    merged = torch.zeros(V, D, dtype=torch.float64).index_add_(0, words, values)
    expected = torch.cat([merged.flatten(), body.grad.flatten()]).norm()
    norm = clip_grad_norm_([table, body], 0.5)
    assert float(norm) == pytest.approx(float(expected))
    assert torch.allclose(table.grad.to_dense(), merged * 0.5 / expected, rtol=1e-4)
    assert float(body.grad[0]) == pytest.approx(2 * 0.5 / float(expected), rel=1e-4)
    clipped, other = new_table(), new_table()
    kind([table], lr=0.1).step()
    optimiser = kind([other], lr=0.1)
    with torch.no_grad():
        optimiser.step_table(other, None, merged, optimiser.param_groups[0], clip=0.5 / (norm + 1e-6))
    assert torch.allclose(table, other, rtol=1e-5)
    assert not torch.equal(table, clipped)


OF_BOTH = [
    ("lr", -1.0, "lr is -1.0: it must be 0 or more."),
    ("lr", "0.1", "lr is '0.1': give a finite number."),
    ("lr", math.nan, "lr is nan: give a finite number."),
    ("lr", None, "lr is None: give a finite number."),
    ("eps", 0, "eps is 0: it must be above 0"),
    ("eps", -1.0, "eps is -1.0: it must be "),
    ("eps", None, "eps is None: give a finite number."),
]


@pytest.mark.parametrize(
    ("kind", "name", "value", "sentence"),
    [
        *((kind, *refusal) for kind in KINDS for refusal in OF_BOTH),
        (RowwiseAdam, "beta2", 1.0, "beta2 is 1.0: it must be "),
        (RowwiseAdam, "beta2", 2.0, "beta2 is 2.0: it must be "),
        (RowwiseAdagrad, "initial_accumulator", -1.0, "initial_accumulator is -1.0: it must be "),
    ],
)
def test_what_is_out_of_range_is_refused(kind: type, name: str, value: object, sentence: str) -> None:
    """For all parameters, and for those of one group."""
    for parameters, options in (([new_table()], {name: value}), ([{"params": [new_table()], name: value}], {})):
        with pytest.raises(UserError, match=f"^{re.escape(sentence)}"):
            kind(parameters, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_they_do_not_load_the_compiler(kind: type[torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own would, in code that compiles nothing: it takes as long as loading PyTorch."""
    for method in (torch.optim.Optimizer.add_param_group, torch.optim.Optimizer.zero_grad):
        monkeypatch.delattr(method.__wrapped__, "__dynamo_disable", raising=False)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
    table = new_table()
    train(kind([table]), table, sparse=True)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_any_number_of_dimensions_are_rows(kind: type[torch.optim.Optimizer], sparse: bool) -> None:
    """A row of a table (V, 2, 3) is six numbers."""
    flat = nn.Parameter(torch.randn(V, 6, generator=torch.Generator().manual_seed(5)))
    deep = nn.Parameter(flat.detach().reshape(V, 2, 3).clone())
    for table in (flat, deep):
        optimizer, chance = kind([table], lr=0.1), torch.Generator().manual_seed(6)
        for _ in range(3):
            words, values = torch.randint(V, (7,), generator=chance), torch.randn(7, 6, generator=chance)
            give_gradient(table, words, values.reshape(7, *table.shape[1:]), sparse=sparse)
            clip_grad_norm_([table], 0.5)
            optimizer.step()
    assert torch.equal(deep.reshape(V, 6), flat)


@pytest.mark.parametrize("sparse", [True, False])
def test_a_tied_table_counts_once(sparse: bool) -> None:
    """Its name is in the embedding and in the output layer."""
    table = new_table()
    give_gradient(table, *batches()[0], sparse=sparse)
    assert table.grad is not None
    norm = table.grad.to_dense().norm()
    torch.testing.assert_close(clip_grad_norm_(iter([table, table]), 0.5), norm)
    assert float(table.grad.to_dense().norm()) == pytest.approx(0.5, rel=1e-4)


def test_clipping_takes_the_arguments_of_pytorch() -> None:
    table = new_table()
    give_gradient(table, *batches()[0], sparse=True)
    assert clip_grad_norm_([table], 0.5, 2, error_if_nonfinite=True) > 0
    assert float(clip_grad_norm_([table], 0.5, norm_type=2.0)) == pytest.approx(0.5, rel=1e-4)
    assert float(clip_grad_norm_([table], 0.5, 2.0, True)) == pytest.approx(0.5, rel=1e-4)
    for norm_type in (1.0, 3, math.inf):
        with pytest.raises(UserError, match=f"norm_type is {norm_type}: only 2, the Euclidean norm, is there"):
            clip_grad_norm_([table], 0.5, norm_type)
    clipped = clip_grad_norm_([table], float("inf"))
    assert float(clipped) == pytest.approx(0.5, rel=1e-4), "this measures and changes nothing"
    assert table.grad is not None
    table.grad._values()[0] = torch.nan
    assert clip_grad_norm_([table], 0.5).isnan()
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_([table], 0.5, error_if_nonfinite=True)
