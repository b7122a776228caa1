"""The paper's five bodies: what each layer computes, how state is carried, and what an n-gram sees.

Legend: T time steps, B streams, C context words, L = C + T, E embedding, D last hidden layer.
"""

from __future__ import annotations

import pytest
import torch
from making import model_of
from torch import Tensor

from bnce import MODELS
from bnce.models import architecture, build_body, recurrent
from bnce.models.feedforward import FeedForward
from bnce.models.recurrent import Recurrent
from bnce.registry import Rnn

E, H, BOTTLENECK, B = 5, 7, 4, 3
PAPERS = [name for name in MODELS if name != "transformer"]
RECURRENT = [name for name, kind in MODELS.items() if issubclass(kind, Rnn)]
every_depth = pytest.mark.parametrize("num_layers", [1, 2, 3])
EPS = torch.finfo(torch.float32).eps


def body(name: str, num_layers: int = 0, *, dropout: float = 0.0, order: int = 5) -> FeedForward | Recurrent:
    torch.manual_seed(1)
    return build_body(model_of(name, E, H, BOTTLENECK, order=order, num_layers=num_layers, dropout=dropout))


def embedded(num_words: int) -> Tensor:
    return torch.randn(num_words, B, E, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", PAPERS)
def test_shapes(name: str) -> None:
    network = body(name)
    hidden_TBD, state = network(embedded(network.num_context + 6), network.initial_state(B))
    assert network.output_size == (H if name in ("rnn", "lstm") else BOTTLENECK)
    assert hidden_TBD.shape == (6, B, network.output_size)
    assert [part.shape for part in state] == [part.shape for part in network.initial_state(B)]
    assert len(state) == {"ffnn": 0, "lstm": 2, "relu-lstm": 2}.get(name, 1)


@every_depth
@pytest.mark.parametrize("name", RECURRENT)
def test_two_chunks_are_one_long_one(name: str, num_layers: int) -> None:
    network = body(name, num_layers)
    words_TBE = embedded(9)
    whole_TBD, last = network(words_TBE, network.initial_state(B))
    first_TBD, state = network(words_TBE[:4], network.initial_state(B))
    second_TBD, state = network(words_TBE[4:], state)
    torch.testing.assert_close(torch.cat([first_TBD, second_TBD]), whole_TBD, rtol=8 * EPS, atol=8 * EPS)
    for part, expected in zip(state, last, strict=True):
        torch.testing.assert_close(part, expected, rtol=8 * EPS, atol=8 * EPS)
    forgetful_TBD, _ = network(words_TBE[4:], network.initial_state(B))
    assert not torch.allclose(forgetful_TBD, second_TBD, atol=1e-3), "the state does matter"


@every_depth
@pytest.mark.parametrize("shared_states", [1.0, 2.0], ids=["products-copied", "states-copied"])
@pytest.mark.parametrize("part_pairs", [2, 5])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_branch_is_a_step_for_every_pair(
    name: str, num_layers: int, part_pairs: int, shared_states: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two words and three states in five pairs, some of them the same: each as `forward` alone would have it."""
    monkeypatch.setattr(recurrent, "PART_PAIRS", part_pairs)
    monkeypatch.setattr(recurrent, "SHARED_STATES", shared_states)
    network = body(name, num_layers).eval()
    assert isinstance(network, Recurrent)
    word_WE = embedded(2)[:, 0]
    word_B, parent_B = torch.tensor([0, 1, 1, 0, 1]), torch.tensor([2, 0, 2, 2, 2])
    with torch.no_grad():
        _, state = network(embedded(4), network.initial_state(B))
        before = tuple(part.clone() for part in state)
        hidden_BD, after = network.branch(network.prepare_words(word_WE), word_B, state, parent_B)
        pairs = tuple(part[:, parent_B] for part in state)
        expected_TBD, expected = network(word_WE[word_B].unsqueeze(0), pairs)
    torch.testing.assert_close(hidden_BD, expected_TBD[0], rtol=0, atol=16 * EPS)
    for part, expected_part in zip(after, expected, strict=True):
        torch.testing.assert_close(part, expected_part, rtol=0, atol=16 * EPS)
    assert all(torch.equal(part, kept) for part, kept in zip(state, before, strict=True))


@every_depth
@pytest.mark.parametrize("name", RECURRENT)
def test_the_carried_state_ends_back_propagation(name: str, num_layers: int) -> None:
    network = body(name, num_layers)
    words_TBE = embedded(4).requires_grad_()
    hidden_TBD, state = network(words_TBE, network.initial_state(B))
    assert hidden_TBD.requires_grad
    assert not any(part.requires_grad for part in state)


@every_depth
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_are_the_textbook_s(name: str, num_layers: int) -> None:
    network = body(name, num_layers)
    words_TBE = embedded(3)
    state = [(torch.zeros(B, H), torch.zeros(B, H)) for _ in range(num_layers)]
    outputs = []
    for word_BE in words_TBE:
        stream = word_BE
        for number, cell in enumerate([network.cell, *network.upper]):
            hidden, memory = state[number]
            gates = stream @ cell.weight_ih_l0.t() + cell.bias_ih_l0 + hidden @ cell.weight_hh_l0.t() + cell.bias_hh_l0
            if name.endswith("lstm"):
                enter, forget, candidate, out = gates.chunk(4, dim=1)
                memory = forget.sigmoid() * memory + enter.sigmoid() * candidate.tanh()
                hidden = out.sigmoid() * memory.tanh()
            else:
                hidden = gates.tanh()
            state[number] = hidden, memory
            stream = stream + hidden if number else hidden
        outputs.append(torch.relu(network.bottleneck(stream)) if name.startswith("relu-") else stream)
    found_TBD, after = network(words_TBE, network.initial_state(B))
    for part, expected in zip(after, zip(*state, strict=True), strict=False):
        torch.testing.assert_close(part, torch.stack(expected), rtol=1e-5, atol=16 * EPS)
    torch.testing.assert_close(found_TBD, torch.stack(outputs), rtol=1e-5, atol=16 * EPS)


@pytest.mark.parametrize("name", ["rnn", "lstm", "relu-lstm"])
def test_a_body_under_autocast_trains_like_one_in_float32(name: str) -> None:
    torch.manual_seed(1)
    network, input_TBE, found = build_body(model_of(name, 6, 8, 4, num_layers=2)), torch.randn(5, 3, 6), []
    for is_narrow in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_narrow):
            hidden_TBD, state = network(input_TBE, network.initial_state(3))
            network(input_TBE, state)  # the state after a chunk, in whatever type, is one to go on from
        found.append(torch.autograd.grad(hidden_TBD.float().sum(), list(network.parameters())))
    for exact, rounded in zip(*found, strict=True):
        assert (exact - rounded).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("name", RECURRENT)
def test_what_is_between_layers_is_dropped_out(name: str) -> None:
    sizes: list[int] = []
    network = body(name, 3, dropout=0.5)
    network.dropout.register_forward_hook(lambda _module, inputs, _output: sizes.append(inputs[0].shape[2]))
    network(embedded(2), network.initial_state(B))
    assert sizes == [E, H, H, *([H, BOTTLENECK] if name.startswith("relu-") else [H])]


def test_one_layer_has_the_names_it_always_had() -> None:
    """Or models that were written could not be loaded."""
    cell = [f"cell.{kind}_{part}_l0" for kind in ("weight", "bias") for part in ("ih", "hh")]
    assert list(body("lstm").state_dict()) == cell
    assert list(body("relu-rnn", 1).state_dict()) == [*cell, "bottleneck.weight", "bottleneck.bias"]
    upper = [name.replace("cell.", "upper.0.") for name in cell]
    assert list(body("relu-rnn", 2).state_dict()) == [*cell, *upper, "bottleneck.weight", "bottleneck.bias"]


@pytest.mark.parametrize("order", [2, 3, 4, 5, 6])
def test_ffnn_is_the_n_gram_built_by_hand(order: int) -> None:
    network = body("ffnn", order=order)
    num_context = order - 2  # with the word itself, order − 1 words are seen
    assert network.num_context == num_context
    words_LBE = embedded(num_context + 4)
    found_TBD, _ = network(words_LBE, ())
    assert len(found_TBD) == 4
    for t in range(4):
        for b in range(B):
            seen = torch.cat([words_LBE[t + offset, b] for offset in range(order - 1)])  # oldest word first
            hidden = torch.relu(network.hidden.weight @ seen + network.hidden.bias)
            expected = torch.relu(network.bottleneck.weight @ hidden + network.bottleneck.bias)
            torch.testing.assert_close(found_TBD[t, b], expected, rtol=1e-5, atol=16 * EPS)


@pytest.mark.parametrize("name", MODELS)
def test_dropout_is_for_training_only(name: str) -> None:
    dropping, plain = body(name, dropout=0.5), body(name)
    words = embedded(plain.num_context + 6)

    def run(network: FeedForward | Recurrent) -> Tensor:
        return network(words, network.initial_state(B))[0]

    assert not torch.equal(run(dropping), run(dropping))
    assert torch.equal(run(plain), run(plain)), "the paper uses none"
    assert torch.equal(run(dropping.eval()), run(plain.eval()))


def test_the_state_is_where_and_what_the_weights_are() -> None:
    state = body("lstm").double().initial_state(2)
    assert [part.dtype for part in state] == [torch.float64, torch.float64]
    assert state[0].data_ptr() != state[1].data_ptr(), "a checkpoint must be able to hold both"


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("ffnn", "4×200–600–400(B)–V"),
        ("rnn", "200–600(R)–V"),
        ("relu-rnn", "200–600(R)–400(B)–V"),
        ("lstm", "200–600(R)–V"),
        ("relu-lstm", "200–600(R)–400(B)–V"),
        ("transformer", "200–6×600(T)–V"),
    ],
)
def test_architecture_is_written_as_in_table_1(name: str, written: str) -> None:
    assert architecture(model_of(name)) == written
    if name in RECURRENT:
        assert architecture(model_of(name, num_layers=2)) == written.replace("600(R)", "2×600(R)")
