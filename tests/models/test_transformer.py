"""The Transformer: what a layer computes, what a position sees, and how a text may be cut.

Legend: T time steps, B streams, E embedding, D hidden, W words of the context.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F
from making import model_of
from torch import Tensor, nn

from bnce import UserError
from bnce.models import build_body
from bnce.models.transformer import Block, Transformer, rotate, rotations
from bnce.settings import RunConfig, TrainingConfig

B, E, D, W = 3, 10, 12, 6
CONFIG = model_of("transformer", E, D, num_layers=2, num_heads=2, context=W)


def body(**changes: object) -> Transformer:
    torch.manual_seed(1)
    built = build_body(msgspec.structs.replace(CONFIG, **changes)).double()  # type: ignore[arg-type]
    assert isinstance(built, Transformer)
    for parameter in built.parameters():  # the last product of each half starts as zeros, which would hide it
        nn.init.normal_(parameter, std=0.5)
    return built


def embedded(num_words: int) -> Tensor:
    return torch.randn(num_words, B, E, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def test_a_layer_is_the_textbook_s() -> None:
    """Scores of every earlier position, softmax, values; each head for itself, queries and keys normed and turned."""
    network = body(num_layers=1)
    block, T = network.blocks[0], 5
    assert isinstance(block, Block)
    found_TBD, state = network(embedded(T), ())
    assert state == ()

    def normed(part: Tensor) -> Tensor:
        return part / (part.square().mean(-1, keepdim=True) + torch.finfo(part.dtype).eps).sqrt()

    def turned(part_K: Tensor, place: int) -> Tensor:
        half = len(part_K) // 2
        numbers = torch.complex(part_K[:half], part_K[half : 2 * half])
        speed = 10_000.0 ** -(torch.arange(0, 2 * half, 2, dtype=torch.float64) / len(part_K))
        numbers = numbers * torch.polar(torch.ones_like(speed), place * speed)
        return torch.cat([numbers.real, numbers.imag])

    assert network.enter is not None
    for stream in range(B):
        x_TD = normed(network.enter(embedded(T)[:, stream]))
        query_TD, key_TD, value_TD = block.query_key_value(normed(x_TD)).chunk(3, -1)
        for t in range(T):
            heads = []
            for part in (slice(0, D // 2), slice(D // 2, D)):
                query = turned(normed(query_TD[t, part]), t)
                keys = torch.stack([turned(normed(key_TD[s, part]), s) for s in range(t + 1)])
                weight_S = torch.softmax(keys @ query / (D // 2) ** 0.5, 0)
                heads.append(weight_S @ value_TD[: t + 1, part])
            x_D = x_TD[t] + block.found(torch.cat(heads))
            x_D = x_D + block.down(F.relu(block.up(normed(x_D))) ** 2)
            torch.testing.assert_close(found_TBD[t, stream], normed(x_D))


def test_a_chunk_by_itself_is_the_start_of_a_text() -> None:
    network, words = body(), embedded(W)
    alone, _ = network(words, network.initial_state(B))
    assert network.initial_state(B) == ()
    network.eval()
    carried, _ = network(words, network.initial_state(B))
    torch.testing.assert_close(alone, carried)


def test_however_a_text_is_cut() -> None:
    network, words = body().eval(), embedded(20)
    whole, last = network(words, network.initial_state(B))
    parts, state = [], network.initial_state(B)
    for begin, end in ((0, 1), (1, 4), (4, 13), (13, 20)):
        part, state = network(words[begin:end], state)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts), whole)
    for found, expected in zip(state, last, strict=True):
        torch.testing.assert_close(found, expected)
        assert not found.requires_grad


def test_streams_of_other_lengths_keep_their_own_context() -> None:
    """Texts that began at other times lie side by side, as in a beam."""
    network, words = body().eval(), embedded(9)
    _, long = network(words[:5, :1], network.initial_state(1))
    _, short = network(words[:2, 1:2], network.initial_state(1))
    both = tuple(torch.cat(parts, 1) for parts in zip(long, short, strict=True))
    found, _ = network(words[5:7, :2], both)
    expected = [network(words[5:7, :1], long)[0], network(words[5:7, 1:2], short)[0]]
    torch.testing.assert_close(found, torch.cat(expected, 1))


def test_one_layer_sees_the_words_of_its_context_and_no_later_ones() -> None:
    network, words = body(num_layers=1).eval(), embedded(12)
    found, _ = network(words, network.initial_state(B))
    for changed in range(12):
        other = words.clone()
        other[changed] += 1
        differs = (network(other, network.initial_state(B))[0] != found).any(2).any(1)
        assert differs.tolist() == [changed <= t < changed + W for t in range(12)]


def test_two_layers_reach_twice_as_far() -> None:
    network, words = body().eval(), embedded(20)
    assert network.num_words == 2 * (W - 1) + 1
    found, _ = network(words, network.initial_state(B))
    for changed in (20 - network.num_words - 1, 20 - network.num_words):
        other = words.clone()
        other[changed] += 1
        differs = bool((network(other, network.initial_state(B))[0][-1] != found[-1]).any())
        assert differs == (changed == 20 - network.num_words)


def test_products_are_those_of_the_weights_and_of_attention() -> None:
    num_steps, num_layers = 9, 2
    weights = E * D + num_layers * (3 + 1 + 4 + 4) * D * D
    scores = sum(place + 1 for place in range(num_steps)) / num_steps  # a position sees itself and those before it
    assert body().products_per_word(num_steps) == weights + num_layers * 2 * scores * D


def test_products_of_turned_rows_depend_on_their_distance() -> None:
    like = torch.zeros(1, dtype=torch.float64)
    first, second = torch.randn(2, 1, 1, 1, 5, dtype=torch.float64)
    cosine, sine = rotations(20, 5, like)

    def product(s: int, t: int) -> float:
        turned = rotate(first, cosine[s : s + 1], sine[s : s + 1]) * rotate(second, cosine[t : t + 1], sine[t : t + 1])
        return float(turned.sum())

    assert product(3, 7) == pytest.approx(product(12, 16))
    assert product(3, 7) != pytest.approx(product(3, 8))
    assert product(4, 4) == pytest.approx(float((first * second).sum()))


@pytest.mark.parametrize(("size", "num_heads"), [(512, 8), (600, 8), (7, 1), (300, 4)])
def test_heads_are_chosen_to_fit(size: int, num_heads: int) -> None:
    built = build_body(model_of("transformer", 4, size, num_layers=1))
    assert isinstance(built, Transformer)
    assert built.num_heads == num_heads


def test_settings_that_do_not_fit_are_told() -> None:
    with pytest.raises(UserError, match="12, which 5 heads cannot share evenly: make it a multiple of 5"):
        msgspec.structs.replace(CONFIG, num_heads=5)
    for key in ("num_layers", "num_heads", "context"):
        with pytest.raises(UserError, match=rf"model\.{key} is -1"):
            msgspec.structs.replace(CONFIG, **{key: -1})  # type: ignore[arg-type]


def test_the_context_is_the_chunk_s_unless_set() -> None:
    training = TrainingConfig(num_steps=17)
    assert RunConfig(
        model=msgspec.structs.replace(CONFIG, context=0), training=training
    ).model == msgspec.structs.replace(CONFIG, context=17)
    assert RunConfig(model=CONFIG, training=training).model == CONFIG


def test_a_long_text_is_read_in_passes_that_need_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    body_, text = body().eval(), embedded(50)
    whole, after = body_(text, body_.initial_state(B))
    longest = []
    run_after = Block.run_after

    def watched(block: Block, stream_BTD: Tensor, *others: Any) -> Any:
        longest.append(stream_BTD.shape[1])
        return run_after(block, stream_BTD, *others)

    monkeypatch.setattr("bnce.models.transformer.LONGEST_PASS", 8)
    monkeypatch.setattr(Block, "run_after", watched)
    parts, after_parts = body_(text, body_.initial_state(B))
    assert max(longest) == 8
    torch.testing.assert_close(parts, whole)
    for found, expected in zip(after_parts, after, strict=True):
        torch.testing.assert_close(found, expected)
