"""The whole network: embedding, body and output layer in one."""

from __future__ import annotations

import pytest
import torch
from making import draws_all, loss_of, model_of

from bnce import LOSSES, MODELS, noise
from bnce.language_model import LanguageModel

V, B, T = 19, 4, 6
EPS = torch.finfo(torch.float32).eps


def build(model: str = "relu-lstm", loss: str = "bnce", *, learn_log_z: bool = False) -> LanguageModel:
    torch.manual_seed(1)
    config = loss_of(loss, num_noise=5 if draws_all(loss) else 0, **({"learn_log_z": True} if learn_log_z else {}))
    return LanguageModel(model_of(model, 5, 7, 4), config, noise.unigram(torch.arange(V, 0, -1)))


def words(num_steps: int, seed: int = 2) -> torch.Tensor:
    """Make chunks whose words repeat."""
    return torch.randint(V // 2, (num_steps, B), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("model", MODELS)
def test_tables_and_body_are_all_there_is(model: str) -> None:
    network = build(model, learn_log_z=True)
    tables, body = network.tables(), network.body_parameters()
    every = dict(network.named_parameters())
    assert tables.keys() & body.keys() == set()
    assert {**tables, **body}.keys() == every.keys()
    assert all(every[name] is parameter for name, parameter in {**tables, **body}.items())
    assert all(len(table) == V for table in tables.values())
    assert not any(V in parameter.shape for parameter in body.values()), "the body never sees V"
    assert "output.log_z" in body


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_model_learns_with_every_loss(model: str, loss: str) -> None:
    network = build(model, loss)
    input_LB, target_TB = words(T + network.num_context), words(T, 3)
    torch.manual_seed(1)
    total, state = network.loss_sum(input_LB, target_TB, network.initial_state(B))
    total.backward()
    assert torch.isfinite(total)
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert network.embedding.grad.is_sparse
    assert network.output.weight.grad.is_sparse == (
        loss not in ("softmax", "self-normalised-softmax", "adaptive-softmax")
    )
    hidden_TBD, _ = network(input_LB, network.initial_state(B))
    torch.manual_seed(1)
    assert network.output.loss_sum(hidden_TBD, target_TB).item() == pytest.approx(total.item(), rel=1e-6)
    assert len(state) == len(network.initial_state(B))


def test_a_step_touches_only_the_rows_it_reads() -> None:
    network = build()
    input_LB, target_TB = words(T), words(T, 3)
    network.loss_sum(input_LB, target_TB, network.initial_state(B))[0].backward()
    assert network.embedding.grad._nnz() == T * B
    assert network.output.weight.grad._nnz() == T * B
    assert set(network.embedding.grad._indices()[0].tolist()) == set(input_LB.flatten().tolist())
    assert set(network.output.weight.grad._indices()[0].tolist()) == set(target_TB.flatten().tolist())


@pytest.mark.parametrize("model", MODELS)
def test_chunks_one_after_the_other_are_one_text(model: str) -> None:
    network = build(model)
    C = network.num_context
    text_LB = words(C + 8)
    whole_TBD, _ = network(text_LB, network.initial_state(B))
    first_TBD, state = network(text_LB[: C + 3], network.initial_state(B))
    second_TBD, _ = network(text_LB[3:], state)
    torch.testing.assert_close(torch.cat([first_TBD, second_TBD]), whole_TBD, rtol=8 * EPS, atol=8 * EPS)


def test_it_starts_at_the_unigram_model() -> None:
    """Before any training the answer is p_n in every context, and already normalised by Z."""
    network = build("lstm")
    hidden_TBD, _ = network(words(T), network.initial_state(B))
    every_word = torch.arange(V).expand(T, B, V)
    log_probs = network.output.log_probs(hidden_TBD, every_word, normalised=False).detach()
    assert float((log_probs - network.output.noise.log_probs_V).abs().max()) < 0.05


def test_an_embedding_starts_within_its_range() -> None:
    def furthest(model: str) -> float:
        config = model_of(model, 5, 7, 4)
        return float(
            LanguageModel(config, loss_of(), noise.unigram(torch.arange(V, 0, -1))).embedding.detach().abs().max()
        )

    assert 0.08 < furthest("lstm") <= 0.1
    assert 0.008 < furthest("transformer") <= 0.01, "a row is normed before the first layer"
