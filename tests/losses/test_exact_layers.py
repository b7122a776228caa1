"""Exactly normalised layers: against their float64 reference, with gradients, and as a distribution over words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from making import layer_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import bnce
from bnce import LOSSES, UserError
from bnce.losses import compute
from tests.losses import by_equation

T, B, D, V = 3, 7, 12, 40
EPS = torch.finfo(torch.float32).eps
LOSS = "adaptive-softmax"
COUNTS = (500 / torch.arange(1, V + 1)).ceil()[torch.randperm(V, generator=torch.Generator().manual_seed(4))]


def build(**options: Any) -> bnce.OutputLayer:
    """Make a layer away from its start, over words that do not stand in the order of their frequencies."""
    torch.manual_seed(1)
    layer = layer_of(D, V, COUNTS, LOSS, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.5 * torch.randn(parameter.shape)
    return layer


def hidden_and_targets(*shape: int, seed: int = 2) -> tuple[Tensor, Tensor]:
    """Make hidden states, and targets among all words, some of them twice."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, D, generator=generator), torch.randint(V, shape, generator=generator)


class WithoutHost(TorchDispatchMode):
    """Refuses what makes the host wait for values, or a shape of them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let everything else pass."""
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2"), f"{name} waits"
        if name in ("index", "index_put_"):
            assert not any(part is not None and part.dtype == torch.bool for part in args[1]), f"{name} waits"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("T", "B"), [(1, 1), (3, 7), (2, 40)])
@pytest.mark.parametrize("by", ["sum", "each"])
def test_equals_the_reference_with_its_gradients(T: int, B: int, by: str) -> None:
    computed, layer = compute(LOSSES[LOSS]()), build()
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    target_TB[0] = target_TB[0, 0]
    hidden_TBD.requires_grad_()
    batch = layer._batch(hidden_TBD, target_TB)
    leaves = [hidden_TBD, *layer.parameters()]
    expected = by_equation.adaptive_softmax(batch)
    assert expected.dtype == torch.float64
    wanted = torch.autograd.grad(expected, leaves, allow_unused=True)
    found = computed.total(batch) if by == "sum" else computed.each(batch).sum()
    assert found.item() == pytest.approx(expected.item(), rel=64 * EPS)
    for own, other in zip(torch.autograd.grad(found, leaves), wanted, strict=True):
        other = torch.zeros_like(own) if other is None else other
        scale = max(float(other.norm()), expected.item())
        torch.testing.assert_close(own.double(), other.double(), rtol=1e-4, atol=64 * EPS * scale)


@pytest.mark.parametrize("sparse", [False, True])
def test_left_out_positions_change_nothing(sparse: bool) -> None:
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    mask_TB = torch.rand(T, B, generator=torch.Generator().manual_seed(3)) < 0.6
    found = []
    for target in (target_TB, torch.where(mask_TB, target_TB, target_TB.flip(0))):
        layer = build(sparse=sparse, reduction="sum")
        layer(hidden_TBD, target, mask_TB).backward()
        found.append([layer(hidden_TBD, target, mask_TB), *(p.grad.to_dense() for p in layer.parameters())])  # type: ignore[union-attr]
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other)
    alone = build(reduction="sum")
    torch.testing.assert_close(found[0][0], alone(hidden_TBD[mask_TB], target_TB[mask_TB]))
    each = build(reduction="none")(hidden_TBD, target_TB, mask_TB)
    assert bool((each[~mask_TB] == 0).all())
    torch.testing.assert_close(each.sum(), found[0][0])


def test_probabilities_sum_to_one_without_a_constant() -> None:
    layer = build().double()
    hidden_ND = hidden_and_targets(5)[0].double()
    log_prob_NV = layer.all_scores(hidden_ND)
    torch.testing.assert_close(log_prob_NV.exp().sum(1), torch.ones(5, dtype=torch.float64))
    assert layer.normalises
    assert layer.log_z.item() == 0
    assert layer.log_normaliser(hidden_ND).tolist() == [0.0] * 5
    every_NV = torch.arange(V).expand(5, V)
    for normalised in (False, True):
        torch.testing.assert_close(layer.log_probs(hidden_ND, every_NV, normalised), log_prob_NV)
    torch.testing.assert_close(layer.scores_between(hidden_ND, 7, 19), log_prob_NV[:, 7:19])
    word_N = torch.tensor([3, 3, 0, 39, 11])
    torch.testing.assert_close(layer.log_probs(hidden_ND, word_N), log_prob_NV[torch.arange(5), word_N])


def test_the_loss_is_minus_the_log_probability() -> None:
    layer = build()
    hidden_ND, target_N = hidden_and_targets(30)
    torch.testing.assert_close(layer(hidden_ND, target_N), -layer.log_probs(hidden_ND, target_N).mean())
    normaliser_N, score_N = layer.normalise(hidden_ND, target_N)
    torch.testing.assert_close(score_N - normaliser_N, layer.log_probs(hidden_ND, target_N))


def test_it_starts_at_the_unigram() -> None:
    layer = layer_of(D, V, COUNTS, LOSS)
    log_prob_V = layer.all_scores(torch.zeros(1, D))[0]
    torch.testing.assert_close(log_prob_V, (COUNTS / COUNTS.sum()).log(), rtol=1e-5, atol=1e-5)


def test_what_it_has_no_use_for_is_refused() -> None:
    with pytest.raises(UserError, match=r"bnce\.noise\.Running counts them while it trains: give the counts"):
        layer_of(D, V, bnce.noise.Running(V), LOSS)


def test_a_state_fits_a_layer_of_the_same_counts() -> None:
    trained, other = build(), layer_of(D, V, COUNTS, LOSS)
    other.load_state_dict(trained.state_dict())
    hidden_ND, target_N = hidden_and_targets(9)
    assert torch.equal(other.log_probs(hidden_ND, target_N), trained.log_probs(hidden_ND, target_N))


def test_a_step_makes_no_shape_of_the_data() -> None:
    """As in a captured step, where a GPU's host must not have to wait."""
    layer = build(sparse=True)
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    assert layer.structure is not None
    if (places_CV := layer.structure.places_CV) is not None:
        layer.configure(room=places_CV[:, target_TB.flatten()].sum(1).tolist())
    batch = layer._batch(hidden_TBD.requires_grad_(), target_TB)
    with WithoutHost():
        compute(LOSSES[LOSS]()).total(batch).backward()
    with pytest.raises(AssertionError, match="waits"), WithoutHost():
        target_TB[target_TB > 3].tolist()
