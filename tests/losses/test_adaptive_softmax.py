"""Adaptive softmax against PyTorch's own module, with room for fewer and more targets, and its settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from making import layer_of, loss_of
from torch import nn

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


@pytest.mark.parametrize("room", [None, [20, 60], [60, 60]])
@pytest.mark.parametrize("where", ["everywhere", "head", "last tail"])
def test_equals_pytorchs_module_with_its_gradients(where: str, room: list[int] | None) -> None:
    layer, theirs = twins()
    layer.configure(room=room)
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


def test_targets_without_room_are_told_of() -> None:
    layer, _ = twins()
    layer.configure(room=[2, 2])
    hidden_ND, target_N = torch.randn(6, D), torch.tensor([0, 9, 10, 30, 40, 41])
    assert layer(hidden_ND, target_N).isnan()
    with pytest.raises(UserError, match=r"needed 3 places in tail 2, more than room says \(2\)"):
        layer.check()
    layer.check()  # told once
    layer.configure(room=[2, 3])
    assert layer(hidden_ND, target_N).isfinite()
    layer.check()


def test_room_is_counted_in_the_text() -> None:
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
    with pytest.raises(UserError, match=r"loss.div_value is 0.5: it must be at least 1"):
        loss_of("adaptive-softmax", div_value=0.5)
    with pytest.raises(UserError, match="The loss bnce has no parts to make room in"):
        layer_of(D, V, COUNTS).configure(room=[3])


def test_cutoffs_are_a_list_in_settings_and_in_files(tmp_path: Path) -> None:
    config = load_recipe("ltcb", loss="adaptive-softmax", settings=["loss.cutoffs=[100,2000]"])
    assert config.loss.cutoffs == (100, 2000)
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert read_config(path) == config
    for wrong in ("6000", '["a"]', "[1.5]"):
        with pytest.raises(UserError, match="it must be a list of numbers from 1 on"):
            load_recipe("ltcb", loss="adaptive-softmax", settings=[f"loss.cutoffs={wrong}"])
