"""benchmarks/losses and benchmarks/softmaxes: values and gradients against float64, and what is special about a loss.

Probabilities are formed as the equations have them, with exp and division.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import Command, settings
from making import layer_of
from torch import Tensor

import bnce as package
from benchmarks import losses, softmaxes
from benchmarks.losses import class_softmax, hierarchical_softmax
from benchmarks.losses.huffman import build_tree

T, B, D, V = 3, 7, 12, 40
EPS = torch.finfo(torch.float32).eps
COUNTS = (500 / torch.arange(1, V + 1)).ceil()[torch.randperm(V, generator=torch.Generator().manual_seed(4))]
DRAWN = {"blackout": 5, "negative-sampling": 5}
EXACT = ("hierarchical-softmax", "class-softmax")


@pytest.fixture(autouse=True)
def _registered(losses_of_its_own: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the losses; few words are too few for parts of a usual size."""
    losses.register()
    monkeypatch.setattr(hierarchical_softmax, "NUM_TOP", 5)
    monkeypatch.setattr(hierarchical_softmax, "BLOCK_NUMBERS", 300)
    monkeypatch.setattr(class_softmax, "TILE_SIZES", (2, 4))
    monkeypatch.setitem(class_softmax.MAX_NUMBERS, "cpu", 300)


def build(loss: str, **options: Any) -> package.OutputLayer:
    """Make a layer away from its start, over words that do not stand in the order of their frequencies."""
    torch.manual_seed(1)
    noise = package.noise.unigram(COUNTS, 0.75 if loss in DRAWN else 1.0)
    layer = layer_of(D, V, noise, loss, num_noise=DRAWN.get(loss, 0), **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.5 * torch.randn(parameter.shape)
    return layer


def hidden_and_targets(*shape: int) -> tuple[Tensor, Tensor]:
    """Make hidden states, and targets of which some are the same word."""
    generator = torch.Generator().manual_seed(2)
    hidden, targets = torch.randn(*shape, D, generator=generator), torch.randint(V, shape, generator=generator)
    targets[0] = targets[0, 0]
    return hidden.requires_grad_(), targets


def losses_of_positions(loss: str, layer: package.OutputLayer, hidden_ND: Tensor, target_N: Tensor) -> Iterator[Tensor]:
    """Compute the loss of each position by its equation."""
    weight, bias, structure = layer.weight.double(), layer.bias.double(), layer.structure
    drawn_K = layer.noise.sample((layer.num_noise,)) if loss in DRAWN else None
    probs_V = layer.noise.log_probs_V.double().exp()
    for hidden_D, target in zip(hidden_ND.double(), target_N, strict=True):
        scores = weight @ hidden_D + bias
        if drawn_K is not None and loss == "negative-sampling":
            own, others = (1 / (1 + torch.exp(-scores[words])) for words in (target, drawn_K))
            yield -torch.log(own) - torch.log(1 - others).sum()
        elif drawn_K is not None:
            words = torch.cat([target.reshape(1), drawn_K[drawn_K != target]])
            shares = torch.exp(scores[words]) / probs_V[words]
            shares = shares / shares.sum()
            yield -torch.log(shares[0]) - torch.log(1 - shares[1:]).sum()
        elif isinstance(structure, hierarchical_softmax.HierarchicalSoftmax):
            yes_R, probability = 1 / (1 + torch.exp(-scores)), torch.ones((), dtype=torch.float64)
            choice = int(structure.tree.choice_V[target])
            while choice >= 0:  # a choice is 2·node + bit
                probability = probability * (yes_R[choice >> 1] if choice % 2 else 1 - yes_R[choice >> 1])
                choice = int(structure.tree.choice_R[choice >> 1])
            yield -torch.log(probability)
        else:
            assert isinstance(structure, class_softmax.ClassSoftmax)
            number, place = (int(part) for part in structure.find(target))
            of_class = slice(number * structure.class_size, min((number + 1) * structure.class_size, V))
            own = structure.words_weight.double()[of_class] @ hidden_D + structure.words_bias.double()[of_class]
            yield -torch.log(torch.softmax(scores, 0)[number]) - torch.log(torch.softmax(own, 0)[place])


@pytest.mark.parametrize("loss", [*DRAWN, *EXACT])
@pytest.mark.parametrize(("T", "B"), [(1, 1), (3, 7), (2, 40)])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_equals_its_equation_with_its_gradients(
    loss: str, T: int, B: int, sparse: bool, masked: bool, reduction: str
) -> None:
    layer, (hidden_TBD, target_TB) = build(loss, sparse=sparse, reduction=reduction), hidden_and_targets(T, B)
    counts_TB = torch.arange(T * B).reshape(T, B) % 3 != 1 if masked else torch.ones(T, B, dtype=torch.bool)
    leaves = [hidden_TBD, *layer.parameters()]
    torch.manual_seed(7)
    expected = sum(losses_of_positions(loss, layer, hidden_TBD[counts_TB], target_TB[counts_TB]))
    assert isinstance(expected, Tensor)
    torch.manual_seed(7)
    found = layer(hidden_TBD, target_TB, counts_TB if masked else None)
    if reduction == "none":
        assert not found[~counts_TB].any()
    scale = max(1.0, expected.item())
    assert found.sum().item() == pytest.approx(expected.item(), abs=64 * EPS * scale)
    wanted = torch.autograd.grad(3 * expected, leaves, allow_unused=True)
    for own, other in zip(torch.autograd.grad(3 * found.sum(), leaves), wanted, strict=True):
        own = own.to_dense() if own.is_sparse else own
        other = torch.zeros_like(own) if other is None else other
        torch.testing.assert_close(own.double(), other.double(), rtol=1e-4, atol=64 * EPS * scale)


@pytest.mark.parametrize("masked", [False, True])
def test_every_softmax_at_hand_equals_ours(masked: bool) -> None:
    hidden_TBD, target_TB = hidden_and_targets(T, B)
    mask_TB = torch.arange(T * B).reshape(T, B) % 3 != 1 if masked else None
    there = [name for name in softmaxes.register() if name != "softmax-compiled"]  # which would compile for a minute
    assert "softmax-plain" in there
    results = []
    for loss in ("softmax", *there):
        layer = build(loss, reduction="sum")
        found = layer(hidden_TBD, target_TB, mask_TB)
        results.append([found, *torch.autograd.grad(found, [hidden_TBD, layer.weight, layer.bias])])
    for other in results[1:]:
        for own, expected in zip(other, results[0], strict=True):
            torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)
    each_TB = build("softmax-plain", reduction="none")(hidden_TBD, target_TB, mask_TB)
    torch.testing.assert_close(each_TB.sum(), results[0][0])


@pytest.mark.parametrize("loss", EXACT)
def test_exact_layers_are_distributions_that_start_at_the_unigram(loss: str) -> None:
    layer = build(loss).double()
    hidden_ND = torch.randn(5, D, dtype=torch.float64)
    log_prob_NV = layer.all_scores(hidden_ND)
    torch.testing.assert_close(log_prob_NV.exp().sum(1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(layer.log_probs(hidden_ND, torch.arange(V).expand(5, V)), log_prob_NV)
    start_V = layer_of(D, V, COUNTS, loss).all_scores(torch.zeros(1, D))[0]
    torch.testing.assert_close(start_V, (COUNTS / COUNTS.sum()).log(), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The first targets have ln p")
@pytest.mark.parametrize("lead", [60.0, -60.0])
def test_blackout_of_a_word_that_is_all_or_nothing_stays_finite(lead: float) -> None:
    """Without the bound on p, ln(1 − p) of a drawn word 60 nats above the target would be infinite."""
    layer, (hidden_TBD, target_TB) = build("blackout"), hidden_and_targets(1, 2)
    with torch.no_grad():
        layer.bias += lead
        layer.bias[target_TB] -= lead
    loss = layer(hidden_TBD, target_TB)
    assert loss.isfinite()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(loss, [hidden_TBD, layer.weight, layer.bias]))


def test_negative_sampling_starts_at_the_odds_and_says_that_its_perplexity_is_none(
    corpus: Path, bnce: Command, tmp_path: Path
) -> None:
    counts = torch.tensor([50.0, 30.0, 15.0, 5.0])
    noise = package.noise.unigram(counts, 0.75)
    layer = layer_of(3, 4, noise, "negative-sampling", num_noise=7)
    expected_V = (counts / counts.sum()).log() - noise.log_probs_V - math.log(7)
    torch.testing.assert_close(layer.bias.detach(), expected_V)
    drawn = settings("loss.num_noise=5", "loss.noise_power=0.75")
    options = ["--corpus", corpus, "--loss", "negative-sampling", "--out", tmp_path / "run", "--device", "cpu", *drawn]
    trained = bnce("train", "wiki", "--model", "rnn", *options)
    evaluated = bnce("evaluate", tmp_path / "run", "--device", "cpu")
    for outcome in (trained, evaluated):
        assert outcome.status == 0, outcome.stderr
        assert "Negative sampling learns no probabilities" in " ".join(outcome.stderr.split())
        assert "worse than at the start" not in outcome.stderr


@pytest.mark.parametrize("size", [2, 3, 64, 500])
@pytest.mark.parametrize("shares", [lambda size: 1 / np.arange(1, size + 1), np.ones], ids=["zipf", "equal"])
def test_the_tree_is_huffmans(shares: Callable[[int], np.ndarray], size: int) -> None:
    """Its mean path is as short as that of the tree which a heap makes, one pair at a time."""
    probs_V = shares(size) / shares(size).sum()
    weights, shortest = list(probs_V), 0.0
    heapq.heapify(weights)
    while len(weights) > 1:
        both = heapq.heappop(weights) + heapq.heappop(weights)
        shortest += both
        heapq.heappush(weights, both)
    _, length_V = build_tree(probs_V).paths()
    assert float(probs_V @ length_V) == pytest.approx(shortest)
    assert math.fsum(0.5**length_V) == 1


def test_rare_choices_without_room_are_told_of() -> None:
    layer, (hidden_TBD, target_TB) = build("hierarchical-softmax"), hidden_and_targets(T, B)
    assert layer.structure is not None
    assert layer.structure.places_CV is not None
    needed = int(layer.structure.places_CV[0, target_TB.flatten()].sum())
    expected = layer(hidden_TBD, target_TB)
    layer.configure(capacities=[needed])
    torch.testing.assert_close(layer(hidden_TBD, target_TB), expected)
    layer.configure(capacities=[needed - 1])
    assert layer(hidden_TBD, target_TB).isnan()
    with pytest.raises(package.UserError, match=rf"needed {needed} places in list 1, more than capacities say"):
        layer.check()


def test_few_classes_have_gradients_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_softmax, "NUM_CLASSES", 20)
    layer = build("class-softmax", sparse=True)
    for num_positions, by_row in ((3, True), (30, False)):
        layer(torch.randn(num_positions, D), torch.arange(num_positions)).backward()
        grad = layer.structure.words_weight.grad  # type: ignore[union-attr]
        assert grad.is_sparse == by_row
        layer.zero_grad()
