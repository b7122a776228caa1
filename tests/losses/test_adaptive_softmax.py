"""Adaptive softmax against PyTorch's own module, as a distribution over words, and its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from making import layer_of, loss_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import bnce
from bnce import UserError
from bnce.corpus.streams import Streams
from bnce.losses.adaptive_softmax import AdaptiveSoftmax, default_cutoffs
from bnce.recipes import load_recipe
from bnce.settings import read_config, to_toml

D, V, CUTOFFS = 16, 50, [8, 20]
COUNTS = (900 / torch.arange(1, V + 1)).ceil()


def twins() -> tuple[bnce.OutputLayer, nn.AdaptiveLogSoftmaxWithLoss]:
    """Make our layer and PyTorch's module with the same parameters; biases of tails are ours alone."""
    torch.manual_seed(1)
    theirs = nn.AdaptiveLogSoftmaxWithLoss(D, V, CUTOFFS, div_value=4.0, head_bias=True)
    layer = layer_of(D, V, COUNTS, "adaptive-softmax", cutoffs=CUTOFFS, div_value=4.0)
    with torch.no_grad():
        theirs.head.bias.normal_()
        layer.weight.copy_(theirs.head.weight)
        layer.bias.copy_(theirs.head.bias)
        for own, other in zip(structure_of(layer).all_tails(), theirs.tail, strict=True):
            own.projection.copy_(other[0].weight)
            own.weight.copy_(other[1].weight)
            own.bias.zero_()
    return layer, theirs


def structure_of(layer: bnce.OutputLayer) -> AdaptiveSoftmax:
    assert isinstance(layer.structure, AdaptiveSoftmax)
    return layer.structure


@pytest.mark.parametrize("capacities", [None, [20, 60], [60, 60]])
@pytest.mark.parametrize("where", ["everywhere", "head", "last tail"])
def test_equals_pytorchs_module_with_its_gradients(where: str, capacities: list[int] | None) -> None:
    layer, theirs = twins()
    layer.configure(capacities=capacities)
    begin, end = {"everywhere": (0, V), "head": (0, 8), "last tail": (20, V)}[where]
    hidden_ND = torch.randn(60, D, generator=torch.Generator().manual_seed(2)).requires_grad_()
    target_N = torch.randint(begin, end, (60,), generator=torch.Generator().manual_seed(3))
    found, expected = layer(hidden_ND, target_N), theirs(hidden_ND, target_N).loss
    torch.testing.assert_close(found, expected)
    (found_grad,) = torch.autograd.grad(found, hidden_ND, retain_graph=True)
    (expected_grad,) = torch.autograd.grad(expected, hidden_ND, retain_graph=True)
    torch.testing.assert_close(found_grad, expected_grad)
    found.backward()
    expected.backward()
    pairs = [(layer.weight, theirs.head.weight), (layer.bias, theirs.head.bias)]
    for own, other in zip(structure_of(layer).all_tails(), theirs.tail, strict=True):
        pairs += [(own.projection, other[0].weight), (own.weight, other[1].weight)]
    for mine, other_parameter in pairs:
        wanted = torch.zeros_like(mine) if other_parameter.grad is None else other_parameter.grad
        torch.testing.assert_close(mine.grad, wanted)
    torch.testing.assert_close(layer.all_scores(hidden_ND), theirs.log_prob(hidden_ND))


def test_capacities_are_counted_in_the_text() -> None:
    ids = torch.randint(V, (210,), generator=torch.Generator().manual_seed(2)).numpy()
    layer, _ = twins()
    places_CV = structure_of(layer).places_CV
    assert places_CV is not None
    clusters_V = places_CV[0] + 2 * places_CV[1]
    assert clusters_V.tolist() == [0] * 8 + [1] * 12 + [2] * 30
    streams = Streams(ids, 6, 4)
    expected = [
        max(int((clusters_V[chunk.target_TB.numpy()] == number).sum()) for chunk in streams.chunks())
        for number in (1, 2)
    ]
    assert streams.max_places(places_CV) == expected
    by_group = [
        max(
            int((clusters_V[part.numpy()] == number).sum())
            for chunk in streams.chunks()
            for part in chunk.target_TB.chunk(3, 1)
        )
        for number in (1, 2)
    ]
    assert streams.max_places(places_CV, 3) == by_group
    halves = [Streams(ids, 6, 4, columns=slice(begin, begin + 3)).max_places(places_CV) for begin in (0, 3)]
    assert [max(pair) for pair in zip(*halves, strict=True)] <= expected


class WithoutHost(TorchDispatchMode):
    """Refuses what makes the host wait for values, or a shape of them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let everything else pass."""
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2"), f"{name} waits"
        if name in ("index", "index_put_"):
            assert not any(part is not None and part.dtype == torch.bool for part in args[1]), f"{name} waits"
        return func(*args, **(kwargs or {}))


def test_a_step_makes_no_shape_of_the_data() -> None:
    """As in a captured step, where a GPU's host must not have to wait."""
    layer, _ = twins()
    hidden_TBD, target_TB = torch.randn(3, 7, D).requires_grad_(), torch.randint(V, (3, 7))
    layer.configure(capacities=structure_of(layer).places_CV[:, target_TB.flatten()].sum(1).tolist())  # type: ignore[index]
    batch = layer._batch(hidden_TBD, target_TB)
    with WithoutHost():
        layer._compute(batch, layer.loss).sum().backward()
    with pytest.raises(AssertionError, match="waits"), WithoutHost():
        target_TB[target_TB > 3].tolist()


def test_probabilities_sum_to_one_without_a_constant() -> None:
    layer = twins()[0].double()
    hidden_ND = torch.randn(5, D, dtype=torch.float64)
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
    torch.testing.assert_close(layer(hidden_ND, word_N), -layer.log_probs(hidden_ND, word_N).mean())


def test_it_starts_at_the_unigram() -> None:
    counts = COUNTS[torch.randperm(V, generator=torch.Generator().manual_seed(4))]
    log_prob_V = layer_of(D, V, counts, "adaptive-softmax").all_scores(torch.zeros(1, D))[0]
    torch.testing.assert_close(log_prob_V, (counts / counts.sum()).log(), rtol=1e-5, atol=1e-5)


def test_what_it_has_no_use_for_is_refused() -> None:
    with pytest.raises(UserError, match=r"bnce\.noise\.Running counts them while it trains: give the counts"):
        layer_of(D, V, bnce.noise.Running(V), "adaptive-softmax")


def test_a_state_fits_a_layer_of_the_same_counts() -> None:
    trained, other = twins()[0], layer_of(D, V, COUNTS, "adaptive-softmax", cutoffs=CUTOFFS, div_value=4.0)
    other.load_state_dict(trained.state_dict())
    hidden_ND, target_N = torch.randn(9, D), torch.randint(V, (9,))
    assert torch.equal(other.log_probs(hidden_ND, target_N), trained.log_probs(hidden_ND, target_N))


def test_rare_words_are_in_tails_wherever_their_ids_are() -> None:
    counts = torch.arange(1, V + 1)
    layer = layer_of(D, V, counts, "adaptive-softmax", cutoffs=CUTOFFS)
    assert structure_of(layer).place_V.tolist() == [V - 1 - word for word in range(V)]


@pytest.mark.parametrize(
    ("vocab_size", "cutoffs"), [(800_000, [60_000, 160_000]), (80_000, [6_000, 16_000]), (3, [1]), (10, [1, 2])]
)
def test_cutoffs_follow_the_vocabulary(vocab_size: int, cutoffs: list[int]) -> None:
    assert default_cutoffs(vocab_size) == cutoffs


def test_tails_become_smaller() -> None:
    layer = layer_of(64, V, COUNTS, "adaptive-softmax", cutoffs=[5, 10, 20, 30])
    assert [tail.projection.shape[0] for tail in structure_of(layer).all_tails()] == [16, 4, 1, 1]
    named = layer.tables()
    assert [name for name in named if name.startswith("structure.")] == [
        f"structure.tails.{number}.{part}" for number in range(4) for part in ("weight", "bias")
    ]


@pytest.mark.parametrize("cutoffs", [[5, V], [V]])
def test_cutoffs_that_make_no_tails_are_refused(cutoffs: list[int]) -> None:
    with pytest.raises(UserError, match=r"cutoffs are .*: give rising numbers from 1 to 49"):
        layer_of(D, V, COUNTS, "adaptive-softmax", cutoffs=cutoffs)


def test_tails_of_a_very_large_div_value_have_one_unit() -> None:
    layer = layer_of(D, V, COUNTS, "adaptive-softmax", cutoffs=list(range(5, 25)), div_value=1e38)
    assert [len(tail.projection) for tail in layer.structure.all_tails()] == [1] * 20


def test_settings_are_for_it_alone() -> None:
    assert bnce.AdaptiveSoftmax(cutoffs=(3, 9), div_value=2.0).cutoffs == (3, 9)
    with pytest.raises(TypeError, match="Unexpected keyword argument 'cutoffs'"):
        bnce.BatchNce(cutoffs=(3, 9))  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"loss.cutoffs is \[9, 3\]: give rising numbers from 1 on"):
        loss_of("adaptive-softmax", cutoffs=(9, 3))
    with pytest.raises(UserError, match=r"loss.div_value is 0.5: it must be a number >= 1"):
        loss_of("adaptive-softmax", div_value=0.5)
    for layer, capacities in ((layer_of(D, V, COUNTS), [3]), (twins()[0], [3]), (twins()[0], [3, -1])):
        with pytest.raises(UserError, match=r"^capacities are \[3.*\]: give one number of 0 or more per tail"):
            layer.configure(capacities=capacities)


def test_cutoffs_are_a_list_in_settings_and_in_files(tmp_path: Path) -> None:
    config = load_recipe("ltcb", loss="adaptive-softmax", settings=["loss.cutoffs=[100,2000]"])
    assert config.loss.cutoffs == (100, 2000)
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert read_config(path) == config
    for wrong in ("6000", '["a"]', "[1.5]"):
        with pytest.raises(UserError, match=r"loss.cutoffs is .*: it must be a (list|whole number)"):
            load_recipe("ltcb", loss="adaptive-softmax", settings=[f"loss.cutoffs={wrong}"])
