"""Class softmax: classes of one size, tiles for any targets, gradients by row where a step has few classes."""

from __future__ import annotations

import pytest
import torch

import bnce
from bnce import UserError
from bnce.config import LossConfig
from bnce.losses.class_softmax import ClassSoftmax, class_softmax, class_softmax_each

D, V = 8, 700
COUNTS = (9000 / torch.arange(1, V + 1)).ceil()


def build(num_classes: int = 0, *, sparse: bool = True) -> tuple[bnce.OutputLayer, ClassSoftmax]:
    torch.manual_seed(1)
    layer = bnce.OutputLayer(D, V, COUNTS, "class-softmax", sparse=sparse, num_classes=num_classes, reduction="sum")
    assert isinstance(layer.structure, ClassSoftmax)
    return layer, layer.structure


@pytest.mark.parametrize(
    ("vocab_size", "num_classes", "classes", "size"),
    [(700, 0, 26, 27), (700, 100, 100, 7), (80_000, 0, 278, 288), (800_000, 0, 893, 896), (5, 5, 5, 1), (5, 1, 1, 5)],
)
def test_classes_have_one_size(vocab_size: int, num_classes: int, classes: int, size: int) -> None:
    structure = ClassSoftmax(1, bnce.noise.unigram(torch.arange(vocab_size, 0, -1)), num_classes=num_classes)
    assert (structure.num_rows, structure.class_size) == (classes, size)
    class_V, word_V = structure.find(torch.arange(vocab_size))
    assert int(class_V.max()) == classes - 1
    assert bool((class_V * size + word_V == structure.place_V).all())


@pytest.mark.parametrize("of", ["one word", "one class", "every class", "text"])
@pytest.mark.parametrize("num_positions", [1, 3, 40, 300])
@pytest.mark.parametrize("num_classes", [0, 1, 200, V])
def test_tiles_hold_every_position_once(of: str, num_positions: int, num_classes: int) -> None:
    layer, structure = build(num_classes)
    generator = torch.Generator().manual_seed(3)
    target_N = {
        "one word": torch.full((num_positions,), V - 1),
        "one class": torch.randint(min(V, structure.class_size), (num_positions,), generator=generator),
        "every class": torch.arange(num_positions) * 613 % V,
        "text": torch.multinomial(COUNTS, num_positions, replacement=True, generator=generator),
    }[of]
    valid_N = torch.rand(num_positions, generator=generator) < 0.8
    class_N, word_N = structure.find(target_N)
    tiles = structure.lay(class_N, word_N, valid_N)
    held = tiles.position_GQ[tiles.is_there_GQ]
    assert held.sort().values.tolist() == torch.nonzero(valid_N).flatten().tolist()
    of_tile_GQ = tiles.class_G.unsqueeze(1).expand_as(tiles.word_GQ)
    assert torch.equal(of_tile_GQ[tiles.is_there_GQ], class_N[held])
    assert torch.equal(tiles.word_GQ[tiles.is_there_GQ], word_N[held])
    batch = layer._batch(torch.randn(1, num_positions, D), target_N.unsqueeze(0), valid_N.unsqueeze(0))
    torch.testing.assert_close(class_softmax(batch), class_softmax_each(batch).sum(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("num_positions", "by_row"), [(5, True), (90, False)])
def test_few_classes_have_gradients_by_row(num_positions: int, by_row: bool) -> None:
    target_N = torch.multinomial(COUNTS, num_positions, replacement=True)
    hidden_ND = torch.randn(num_positions, D)
    grads = []
    for sparse in (False, True):
        layer, structure = build(100, sparse=sparse)
        layer(hidden_ND, target_N).backward()
        weight, bias = structure.words_weight.grad, structure.words_bias.grad
        assert weight is not None
        assert bias is not None
        assert weight.is_sparse == bias.is_sparse == (sparse and by_row)
        grads.append((weight.to_dense(), bias.to_dense()))
        if weight.is_sparse:
            assert weight._nnz() <= num_positions * structure.class_size
    for found, expected in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(found, expected)


def test_rows_of_no_words_are_never_read() -> None:
    layer, structure = build(26)
    assert len(structure.words_bias) == 702
    hidden_ND, target_N = torch.randn(40, D), torch.arange(V - 40, V)
    expected = layer(hidden_ND, target_N), layer.all_scores(hidden_ND)
    with torch.no_grad():
        structure.words_bias[V:] = 50.0
        structure.words_weight[V:] = 50.0
    assert torch.equal(layer(hidden_ND, target_N), expected[0])
    assert torch.equal(layer.all_scores(hidden_ND), expected[1])


def test_settings_are_for_it_alone() -> None:
    assert LossConfig("class-softmax", num_classes=30).num_classes == 30
    with pytest.raises(UserError, match=r"loss\.num_classes is 30, but softmax has no use for it"):
        LossConfig("softmax", num_classes=30)
    with pytest.raises(UserError, match=r"loss\.num_classes is -1: it must be at least 0"):
        LossConfig("class-softmax", num_classes=-1)
    with pytest.raises(UserError, match=r"num_classes is 701: give a number from 1 to vocab_size \(700\)"):
        build(701)
    with pytest.raises(UserError, match="The loss class-softmax has no parts to make room in"):
        build()[0].set_form(room=[3])
