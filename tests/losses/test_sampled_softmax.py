"""How the words of sampled softmax are drawn, and what becomes of hits; its values are in `test_losses.py`."""

from __future__ import annotations

import pytest
import torch
from making import layer_of

import bnce
from bnce.losses.sampled_softmax import first_of_each, log_expected

V = 30
COUNTS = torch.arange(V, 0, -1)


def test_a_position_whose_only_drawn_word_is_its_target_has_no_loss() -> None:
    layer = layer_of(4, 1, [5], "sampled-softmax", num_noise=1, replacement=False)
    hidden_TBD = torch.randn(2, 3, 4).requires_grad_()
    loss = layer(hidden_TBD, torch.zeros(2, 3, dtype=torch.int64))
    assert loss.item() == 0.0
    assert not torch.autograd.grad(loss, hidden_TBD)[0].any()


@pytest.mark.parametrize("replacement", [False, True])
def test_words_are_drawn_once_for_the_chunk(replacement: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_of(4, V, COUNTS, "sampled-softmax", num_noise=5, replacement=replacement)
    shapes: list[tuple[int, ...]] = []
    sample = layer.noise.sample
    monkeypatch.setattr(layer.noise, "sample", lambda shape: shapes.append(tuple(shape)) or sample(shape))
    layer(torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64))
    assert shapes == [(5 if replacement else layer.noise.num_draws(5),)]


@pytest.mark.parametrize(("loss", "shape"), [("nce", (2, 3, 5)), ("snce", (2, 5)), ("bnce", (2, 5))])
def test_others_draw_for_each_position_or_each_step(
    loss: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = layer_of(4, V, COUNTS, loss, num_noise=5)
    shapes: list[tuple[int, ...]] = []
    sample = layer.noise.sample
    monkeypatch.setattr(layer.noise, "sample", lambda shape: shapes.append(tuple(shape)) or sample(shape))
    layer(torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64))
    assert shapes == [shape]


def test_different_words_in_the_order_in_which_they_came() -> None:
    drawn_K = torch.tensor([7, 3, 7, 0, 3, 9, 7])
    words_C, filled_C = first_of_each(drawn_K, 6)
    assert words_C[:4].tolist() == [7, 3, 0, 9]
    assert filled_C.tolist() == [True, True, True, True, False, False]
    assert set(words_C[4:].tolist()) <= set(drawn_K.tolist()), "a row that is read anyway"
    assert first_of_each(drawn_K, 2)[0].tolist() == [7, 3], "more than there is room for"


def test_the_expected_count_is_that_of_the_draws() -> None:
    """Of 40 draws from Zipf's law; a thousand times, and the most frequent word is nearly always among them."""
    noise, num_rounds = bnce.noise.log_uniform(30), 1000
    num_draws = noise.num_draws(12)
    torch.manual_seed(3)
    counts_V = torch.zeros(30)
    for _ in range(num_rounds):
        word_C, filled_C = first_of_each(noise.sample((num_draws,)), noise.max_distinct(num_draws))
        counts_V.index_add_(0, word_C, filled_C.float())
    expected_V = log_expected(noise, torch.arange(30), 12, num_draws).exp()
    deviation_V = (expected_V * (1 - expected_V) / num_rounds).sqrt()
    assert ((counts_V / num_rounds - expected_V).abs() <= 4 * deviation_V + 1e-6).all()
    assert float(expected_V.sum()) == pytest.approx(12, rel=0.05)


def test_narrow_products_give_the_loss_of_exact_ones() -> None:
    layer = layer_of(4, V, COUNTS, "sampled-softmax", num_noise=5)
    hidden_TBD, target_TB = torch.randn(2, 3, 4), torch.randint(V, (2, 3))

    def loss() -> float:
        torch.manual_seed(7)
        return float(layer(hidden_TBD, target_TB).detach())

    exact = loss()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = loss()
    assert rounded == pytest.approx(exact, rel=2**-7)
