"""Hierarchical softmax: Huffman's tree, the rows that a step touches, and room for the choices of a chunk."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
import torch

import bnce
from bnce import UserError
from bnce.losses.hierarchical_softmax import HierarchicalSoftmax
from bnce.losses.huffman import build_tree

D, V = 8, 700
COUNTS = (9000 / torch.arange(1, V + 1)).ceil()


def shares(kind: str, size: int) -> np.ndarray:
    generator = np.random.default_rng(size)
    counts = {"zipf": 1 / np.arange(1, size + 1), "equal": np.ones(size), "any": generator.integers(1, 40, size)}[kind]
    return np.asarray(counts / counts.sum(), dtype=np.float64)


@pytest.mark.parametrize("size", [2, 3, 7, 64, 500])
@pytest.mark.parametrize("kind", ["zipf", "equal", "any"])
def test_the_tree_is_huffmans(kind: str, size: int) -> None:
    """Its mean path is as short as that of the tree which a heap makes, one pair at a time."""
    probs_V = shares(kind, size)
    weights, shortest = list(probs_V), 0.0
    heapq.heapify(weights)
    while len(weights) > 1:
        both = heapq.heappop(weights) + heapq.heappop(weights)
        shortest += both
        heapq.heappush(weights, both)
    tree = build_tree(probs_V)
    path_F, length_V = tree.paths()
    assert float(probs_V @ length_V) == pytest.approx(shortest)
    assert math.fsum(0.5**length_V) == 1
    assert tree.choice_R[0] == -1
    assert bool((tree.choice_R[1:] >> 1 < np.arange(1, size - 1)).all())
    ends = np.cumsum(length_V)
    for word in range(size):
        path = path_F[ends[word] - length_V[word] : ends[word]]
        assert path[0] >> 1 == 0
        assert path[-1] == tree.choice_V[word]
        assert [int(tree.choice_R[choice >> 1]) for choice in path[1:]] == path[:-1].tolist()


def layer_and_words() -> tuple[bnce.OutputLayer, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    layer = bnce.OutputLayer(D, V, COUNTS, "hierarchical-softmax", sparse=True, reduction="sum")
    return layer, torch.randn(4, 6, D), torch.multinomial(COUNTS, 24, replacement=True).reshape(4, 6)


def test_a_step_touches_only_the_nodes_of_its_paths() -> None:
    layer, hidden_TBD, target_TB = layer_and_words()
    assert isinstance(layer.structure, HierarchicalSoftmax)
    assert layer.structure.num_top < layer.structure.num_rows
    layer(hidden_TBD, target_TB).backward()
    path_F, length_V = layer.structure.tree.paths()
    ends = np.cumsum(length_V)
    nodes = {int(n) >> 1 for word in target_TB.flatten() for n in path_F[ends[word] - length_V[word] : ends[word]]}
    for parameter in (layer.weight, layer.bias):
        grad = parameter.grad
        assert grad is not None
        assert grad.is_sparse
        touched = grad.to_dense() if grad.ndim == 1 else grad.to_dense().abs().sum(1)
        assert set(torch.nonzero(touched).flatten().tolist()) == nodes
        assert set(grad._indices()[0].tolist()) <= nodes | set(range(layer.structure.num_top))


def test_room_that_is_too_small_is_told_of() -> None:
    layer, hidden_TBD, target_TB = layer_and_words()
    assert layer.structure is not None
    assert layer.structure.places_CV is not None
    needed = int(layer.structure.places_CV[0, target_TB.flatten()].sum())
    expected = layer(hidden_TBD, target_TB)
    for more in (0, 1, 50):
        layer.set_form(room=[needed + more])
        torch.testing.assert_close(layer(hidden_TBD, target_TB), expected)
    layer.check()
    layer.set_form(room=[needed - 1])
    assert layer(hidden_TBD, target_TB).isnan()
    with pytest.raises(UserError, match=rf"needed {needed} places in list 1, more than room says \({needed - 1}\)"):
        layer.check()


def test_frequent_words_have_short_paths() -> None:
    layer, _, _ = layer_and_words()
    assert isinstance(layer.structure, HierarchicalSoftmax)
    _, length_V = layer.structure.tree.paths()
    probs_V = (COUNTS / COUNTS.sum()).double().numpy()
    entropy = -float((probs_V * np.log2(probs_V)).sum())
    assert entropy <= float(probs_V @ length_V) < entropy + 1
    assert length_V[0] < length_V[-1]


def test_one_word_is_no_choice() -> None:
    with pytest.raises(UserError, match="vocab_size is 1: give 2 or more"):
        bnce.OutputLayer(D, 1, [1.0], "hierarchical-softmax")
    layer = bnce.OutputLayer(D, 2, [3.0, 1.0], "hierarchical-softmax")
    assert layer(torch.zeros(2, D), torch.tensor([0, 1])).item() == pytest.approx(-math.log(0.75 * 0.25) / 2)
