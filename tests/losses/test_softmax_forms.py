"""Every form of the softmax against float64, and the choice among them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bnce import UserError
from bnce.losses import softmax_forms
from bnce.losses.softmax_forms import FORMS, can_run, fastest, get_form

N, D, V = 13, 6, 37
CPU = torch.device("cpu")
HERE = [name for name in ("fused", "plain", "linear") if can_run(name, CPU)]


def inputs() -> tuple[list[Tensor], Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    leaves = [torch.randn(*shape, generator=generator).requires_grad_() for shape in [(N, D), (V, D), (V,)]]
    target_N = torch.randint(V, (N,), generator=generator)
    return leaves, target_N, torch.arange(N) % 3 != 1


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("masked", [False, True])
def test_form_equals_the_plain_one_in_float64(name: str, masked: bool) -> None:
    leaves, target_N, valid_N = inputs()
    valid = valid_N if masked else None
    double = [leaf.detach().double().requires_grad_() for leaf in leaves]
    loss_N = F.cross_entropy(F.linear(*double), target_N, reduction="none")
    exact = loss_N.sum() if valid is None else loss_N[valid].sum()
    found = get_form(name, CPU)(*leaves, target_N, valid)
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=0)
    gradients = zip(torch.autograd.grad(found, leaves), torch.autograd.grad(exact, double), strict=True)
    for part, expected in gradients:
        torch.testing.assert_close(part.double(), expected, rtol=1e-4, atol=1e-5)


def test_forms_that_cannot_run_are_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"The softmax 'cce' cannot run on cpu .* use one of fused, plain"):
        get_form("cce", CPU)
    with pytest.raises(UserError, match="softmax 'fuse'"):
        get_form("fuse", CPU)


def test_fastest_is_the_one_that_measures_least(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"fused": 2.0, "plain": 1.0, "compiled": 3.0}

    def measure(name: str, *args: object, **kwargs: object) -> float:
        if name == "linear":
            raise RuntimeError("does not like this size")
        return seconds[name]

    monkeypatch.setattr(softmax_forms, "measure", measure)
    leaves, _, _ = inputs()
    assert fastest(leaves[1], leaves[2], N, dtype=None) == ("plain", seconds)
    with pytest.raises(UserError, match="No softmax implementation ran"):
        fastest(leaves[1], leaves[2], N, dtype=None, names=["linear"] if can_run("linear", CPU) else [])


def test_measuring_draws_nothing_from_the_runs_own_random_numbers() -> None:
    leaves, _, _ = inputs()
    before = torch.get_rng_state()
    name, seconds = fastest(leaves[1], leaves[2], N, dtype=None, names=HERE)
    assert name in HERE
    assert all(0 < value < 10 for value in seconds.values())
    assert torch.equal(torch.get_rng_state(), before)


def test_config_names_the_forms_there_are() -> None:
    from bnce.config import SOFTMAX_NAMES

    assert tuple(FORMS) == SOFTMAX_NAMES[1:]
