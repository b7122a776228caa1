"""Every exactly normalised layer: against its float64 reference, with gradients, and as a distribution over words."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import bnce
from bnce import LOSSES, UserError
from bnce.config import LossConfig
from bnce.kinds.kind import load
from bnce.losses import class_softmax
from tests.losses import by_equation

T, B, D, V = 3, 7, 12, 40
EPS = torch.finfo(torch.float32).eps
EXACT = [kind.name for kind in LOSSES if kind.structure is not None]
COUNTS = (500 / torch.arange(1, V + 1)).ceil()[torch.randperm(V, generator=torch.Generator().manual_seed(4))]

every_exact = pytest.mark.parametrize("loss", EXACT)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few words are too few for parts of a usual size."""
    monkeypatch.setattr("bnce.losses.hierarchical_softmax.NUM_TOP", 5)
    monkeypatch.setattr("bnce.losses.hierarchical_softmax.BLOCK_NUMBERS", 300)
    monkeypatch.setattr("bnce.losses.class_softmax.TILE_SIZES", (2, 4))
    monkeypatch.setitem(class_softmax.MAX_NUMBERS, "cpu", 300)


def build(loss: str, **options: Any) -> bnce.OutputLayer:
    """Make a layer away from its start, over words that do not stand in the order of their frequencies."""
    torch.manual_seed(1)
    layer = bnce.OutputLayer(D, V, COUNTS, loss, **options)
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


@every_exact
@pytest.mark.parametrize(("T", "B"), [(1, 1), (3, 7), (2, 40)])
@pytest.mark.parametrize("by", ["sum", "each"])
def test_equals_the_reference_with_its_gradients(loss: str, T: int, B: int, by: str) -> None:
    kind, layer = LOSSES.find(loss), build(loss)
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    target_TB[0] = target_TB[0, 0]
    hidden_TBD.requires_grad_()
    batch = layer._batch(hidden_TBD, target_TB)
    leaves = [hidden_TBD, *layer.parameters()]
    expected = getattr(by_equation, kind.built_by.partition(":")[2])(batch)
    assert expected.dtype == torch.float64
    wanted = torch.autograd.grad(expected, leaves, allow_unused=True)
    found = kind.load()(batch) if by == "sum" else load(str(kind.each_by))(batch).sum()
    assert found.item() == pytest.approx(expected.item(), rel=64 * EPS)
    for own, other in zip(torch.autograd.grad(found, leaves), wanted, strict=True):
        other = torch.zeros_like(own) if other is None else other
        scale = max(float(other.norm()), expected.item())
        torch.testing.assert_close(own.double(), other.double(), rtol=1e-4, atol=64 * EPS * scale)


@every_exact
@pytest.mark.parametrize("sparse", [False, True])
def test_left_out_positions_change_nothing(loss: str, sparse: bool) -> None:
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    mask_TB = torch.rand(T, B, generator=torch.Generator().manual_seed(3)) < 0.6
    found = []
    for target in (target_TB, torch.where(mask_TB, target_TB, target_TB.flip(0))):
        layer = build(loss, sparse=sparse, reduction="sum")
        layer(hidden_TBD, target, mask_TB).backward()
        found.append([layer(hidden_TBD, target, mask_TB), *(p.grad.to_dense() for p in layer.parameters())])  # type: ignore[union-attr]
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other)
    alone = build(loss, reduction="sum")
    torch.testing.assert_close(found[0][0], alone(hidden_TBD[mask_TB], target_TB[mask_TB]))
    each = build(loss, reduction="none")(hidden_TBD, target_TB, mask_TB)
    assert bool((each[~mask_TB] == 0).all())
    torch.testing.assert_close(each.sum(), found[0][0])


@every_exact
def test_probabilities_sum_to_one_without_a_constant(loss: str) -> None:
    layer = build(loss).double()
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


@every_exact
def test_the_loss_is_minus_the_log_probability(loss: str) -> None:
    layer = build(loss)
    hidden_ND, target_N = hidden_and_targets(30)
    torch.testing.assert_close(layer(hidden_ND, target_N), -layer.log_probs(hidden_ND, target_N).mean())
    normaliser_N, score_N = layer.normalise(hidden_ND, target_N)
    torch.testing.assert_close(score_N - normaliser_N, layer.log_probs(hidden_ND, target_N))


@every_exact
def test_it_starts_at_the_unigram(loss: str) -> None:
    layer = bnce.OutputLayer(D, V, COUNTS, loss)
    log_prob_V = layer.all_scores(torch.zeros(1, D))[0]
    torch.testing.assert_close(log_prob_V, (COUNTS / COUNTS.sum()).log(), rtol=1e-5, atol=1e-5)


@every_exact
def test_what_it_has_no_use_for_is_refused(loss: str) -> None:
    with pytest.raises(UserError, match=f"learn_log_z is on, but {loss} is exactly normalised"):
        bnce.OutputLayer(D, V, COUNTS, loss, learn_log_z=True)
    with pytest.raises(UserError, match=r"bnce\.noise\.Running counts them while it trains: give the counts"):
        bnce.OutputLayer(D, V, bnce.noise.Running(V), loss)
    with pytest.raises(UserError, match=r"loss\.learn_log_z is on"):
        LossConfig(loss, learn_log_z=True)
    with pytest.raises(UserError, match=f"loss.noise is uniform with loss.noise_power 1, but {loss} has no noise"):
        LossConfig(loss, noise="uniform")


@every_exact
def test_a_state_fits_a_layer_of_the_same_counts(loss: str) -> None:
    trained, other = build(loss), bnce.OutputLayer(D, V, COUNTS, loss)
    other.load_state_dict(trained.state_dict())
    hidden_ND, target_N = hidden_and_targets(9)
    assert torch.equal(other.log_probs(hidden_ND, target_N), trained.log_probs(hidden_ND, target_N))


@every_exact
def test_a_step_makes_no_shape_of_the_data(loss: str) -> None:
    """As in a captured step, where a GPU's host must not have to wait."""
    layer = build(loss, sparse=True)
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    assert layer.structure is not None
    if (places_CV := layer.structure.places_CV) is not None:
        layer.set_form(room=places_CV[:, target_TB.flatten()].sum(1).tolist())
    batch = layer._batch(hidden_TBD.requires_grad_(), target_TB)
    with WithoutHost():
        LOSSES.find(loss).load()(batch).backward()
    with pytest.raises(AssertionError, match="waits"), WithoutHost():
        target_TB[target_TB > 3].tolist()


def test_there_are_exact_layers() -> None:
    assert EXACT
    assert all(math.isfinite(build(loss).structure.products_per_word) for loss in EXACT)  # type: ignore[union-attr]
