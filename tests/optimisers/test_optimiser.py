"""Steps: the row-wise ones equal dense ones, the clipped norm is the true one, schedules fall, and state comes back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from bnce.config import LossConfig, ModelConfig, OptimiserConfig
from bnce.language_model import LanguageModel
from bnce.noise import log_uniform
from bnce.optimisers.optimiser import Optimiser, Schedule

V, B, T = 17, 4, 5
EPS = torch.finfo(torch.float32).eps


def build(loss: str = "bnce") -> LanguageModel:
    """Make a model away from its start, where the gradients of B-NCE nearly cancel."""
    torch.manual_seed(1)
    model = LanguageModel(ModelConfig("relu-lstm", 5, 7, 4), LossConfig(loss, learn_log_z=True), log_uniform(V))
    with torch.no_grad():
        model.embedding.mul_(10)
        model.output.weight.mul_(20)
    return model


def compute_gradients(model: LanguageModel, step: int) -> None:
    """Run a chunk in which words repeat, forward and backward."""
    generator = torch.Generator().manual_seed(step)
    input_LB = torch.randint(V // 2, (T, B), generator=generator)
    target_TB = torch.randint(V // 2, (T, B), generator=generator)
    loss, _ = model.loss_sum(input_LB, target_TB, model.initial_state(B))
    (loss / B).backward()


def dense_gradients(model: LanguageModel) -> dict[str, Tensor]:
    return {
        name: parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def assert_same_parameters(found: LanguageModel, expected: LanguageModel) -> None:
    for (name, parameter), other in zip(found.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(
            parameter, other, rtol=16 * EPS, atol=4 * EPS, msg=lambda text, at=name: f"{at}: {text}"
        )


@pytest.mark.parametrize("loss", ["bnce", "softmax"])
@pytest.mark.parametrize("clip_norm", [0.05, 1000.0])
def test_sgd_is_torch_s_sgd_with_dense_gradients(loss: str, clip_norm: float) -> None:
    found, expected = build(loss), build(loss)
    ours = Optimiser(found, OptimiserConfig("sgd", learning_rate=0.4, clip_norm=clip_norm))
    theirs = torch.optim.SGD(expected.parameters(), lr=0.4)
    for step, factor in enumerate((1.0, 1.0, 0.5)):
        compute_gradients(found, step)
        gradients = ours.collect()
        ours.set_factor(factor)
        ours.apply(gradients)

        compute_gradients(expected, step)
        for name, grad in dense_gradients(expected).items():
            expected.get_parameter(name).grad = grad
        norm = torch.nn.utils.clip_grad_norm_(expected.parameters(), clip_norm)
        theirs.param_groups[0]["lr"] = 0.4 * factor
        theirs.step()
        theirs.zero_grad()

        assert gradients.norm.item() == pytest.approx(norm.item(), rel=8 * EPS)
        assert (norm > clip_norm) == (clip_norm < 1), "both sides of the clip are tried"
        assert_same_parameters(found, expected)
    assert all(parameter.grad is None for parameter in found.parameters())


def test_norm_without_merging_would_be_another() -> None:
    model = build()
    compute_gradients(model, 0)
    unmerged = torch.stack(
        [
            torch.linalg.vector_norm(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
            for parameter in model.parameters()
        ]
    )
    norm = Optimiser(model, OptimiserConfig()).collect().norm
    assert abs(torch.linalg.vector_norm(unmerged).item() / norm.item() - 1) > 0.01


def test_rows_not_read_are_left_to_the_bit() -> None:
    for name in ("sgd", "rowwise"):
        model = build()
        before = copy.deepcopy(model)
        optimiser = Optimiser(model, OptimiserConfig(name))
        compute_gradients(model, 0)
        optimiser.apply(optimiser.collect())
        for table, old in zip(model.tables().values(), before.tables().values(), strict=True):
            assert torch.equal(table[V // 2 :], old[V // 2 :]), "these words do not occur"
            assert not torch.equal(table[: V // 2], old[: V // 2])


@pytest.mark.parametrize("loss", ["bnce", "softmax"])
@pytest.mark.parametrize("clip_norm", [0.05, 1000.0])
def test_rowwise_is_adagrad_by_row_and_adam_by_hand(loss: str, clip_norm: float) -> None:
    """Everything dense and in float64: one accumulator a row, of the mean squared clipped gradient; Adam's means."""
    model = build(loss)
    config = OptimiserConfig("rowwise", learning_rate=0.2, body_learning_rate=0.004, clip_norm=clip_norm)
    optimiser = Optimiser(model, config)
    values = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    squares = {name: torch.zeros(V, dtype=torch.float64) for name in model.tables()}
    means = {name: (torch.zeros_like(values[name]), torch.zeros_like(values[name])) for name in model.body_parameters()}
    for step, factor in enumerate((1.0, 0.5, 0.25), start=1):
        compute_gradients(model, step)
        grads = {name: grad.double() for name, grad in dense_gradients(model).items()}
        optimiser.set_factor(factor)
        optimiser.apply(optimiser.collect())

        norm = torch.stack([grad.square().sum() for grad in grads.values()]).sum().sqrt()
        clip = min(1.0, clip_norm / (norm.item() + 1e-6))
        for name, unclipped in grads.items():
            grad = clip * unclipped
            if name in squares:
                squares[name] += grad.square().reshape(V, -1).mean(1)
                scale_V = 1 / (squares[name].sqrt() + 1e-8)
                values[name] = values[name] - 0.2 * factor * grad * scale_V.reshape(-1, *[1] * (grad.ndim - 1))
            else:
                first, second = means[name]
                first, second = 0.9 * first + 0.1 * grad, 0.99 * second + 0.01 * grad.square()
                means[name] = first, second
                corrected = (second / (1 - 0.99**step)).sqrt() + 1e-8
                values[name] = values[name] - 0.004 * factor * (first / (1 - 0.9**step)) / corrected
        for name, parameter in model.named_parameters():
            # Both start from the same float32 gradient; steps of at most 0.2 are rounded a few times.
            torch.testing.assert_close(parameter.detach().double(), values[name], rtol=16 * EPS, atol=4 * EPS)


@pytest.mark.parametrize("name", ["sgd", "rowwise"])
def test_state_comes_back_to_the_bit(name: str) -> None:
    model = build()
    optimiser = Optimiser(model, OptimiserConfig(name))

    def train(network: LanguageModel, with_optimiser: Optimiser, steps: range) -> None:
        for step in steps:
            compute_gradients(network, step)
            with_optimiser.apply(with_optimiser.collect())

    train(model, optimiser, range(3))
    twin = copy.deepcopy(model)
    resumed = Optimiser(twin, OptimiserConfig(name))
    # Given directly: two optimisers must not share what they were made from.
    resumed.load_state_tensors(optimiser.state_tensors())
    train(model, optimiser, range(3, 6))
    train(twin, resumed, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    state, other = optimiser.state_tensors(), resumed.state_tensors()
    assert state.keys() == other.keys()
    assert all(torch.equal(state[key], other[key]) for key in state)


def test_state_names_everything_a_step_depends_on() -> None:
    model = build()
    optimiser = Optimiser(model, OptimiserConfig("rowwise"))
    compute_gradients(model, 0)
    optimiser.apply(optimiser.collect())
    expected = {f"accumulator.{name}" for name in model.tables()}
    expected |= {"body.mean", "body.square", "body.count"}
    assert set(optimiser.state_tensors()) == expected
    assert Optimiser(model, OptimiserConfig("sgd")).state_tensors() == {}


# Schedules.


def test_halve_after_patience_epochs_without_a_better_one() -> None:
    schedule = Schedule(OptimiserConfig(schedule="halve", patience=2), total_steps=10)
    factors = []
    for perplexity in (100, 90, 95, 90, 80, 81, 82, 83, 84, 79):
        schedule.end_epoch(perplexity)
        factors.append(schedule.factor(0))
    # 95, 90 (no better than 90): halved; 81, 82: halved; 83, 84: halved.
    assert factors == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]


def test_the_paper_waits_seven_epochs() -> None:
    schedule = Schedule(OptimiserConfig(), total_steps=10)
    factors = [schedule.end_epoch(100) or schedule.factor(0) for _ in range(9)]
    assert factors == [1, 1, 1, 1, 1, 1, 1, 0.5, 0.5]


def test_linear_falls_from_one_to_the_floor() -> None:
    schedule = Schedule(OptimiserConfig(schedule="linear"), total_steps=1000)
    assert schedule.factor(0) == 1.0
    assert schedule.factor(250) == pytest.approx(0.75)
    assert schedule.factor(998) == Schedule.FLOOR
    assert schedule.factor(999) == Schedule.FLOOR
    schedule.end_epoch(1.0)
    schedule.end_epoch(2.0)
    assert schedule.factor(250) == pytest.approx(0.75), "perplexities do not matter to it"


def test_cosine_falls_slowly_at_both_ends() -> None:
    schedule = Schedule(OptimiserConfig(schedule="cosine"), total_steps=1000)
    assert schedule.factor(0) == pytest.approx(1.0)
    assert schedule.factor(500) == pytest.approx(0.5)
    assert schedule.factor(100) > 0.9 + 0.05
    assert schedule.factor(900) < 0.1 - 0.05
    assert schedule.factor(999) == Schedule.FLOOR


def test_initial_accumulator_keeps_a_rows_first_step_small() -> None:
    steps = []
    for initial in (0.0, 1.0):
        model = LanguageModel(ModelConfig("relu-lstm", 5, 7, 4), LossConfig("bnce"), log_uniform(V))
        optimiser = Optimiser(model, OptimiserConfig("rowwise", initial_accumulator=initial))
        assert all(bool((tensor == initial).all()) for tensor in optimiser.accumulators.values())
        before = model.embedding.detach().clone()
        word_TB = torch.ones(2, 3, dtype=torch.int64)
        loss_sum, _ = model.loss_sum(word_TB, 2 * word_TB, model.initial_state(3))
        loss_sum.backward()
        optimiser.apply(optimiser.collect())
        steps.append(float((model.embedding.detach() - before).norm()))
    assert 0 < steps[1] < 0.5 * steps[0]


def test_linear_warms_up() -> None:
    schedule = Schedule(OptimiserConfig(schedule="linear", warmup_steps=4), total_steps=100)
    found = [schedule.factor(step) for step in range(6)]
    assert found == pytest.approx([0.25 * 1.0, 0.5 * 0.99, 0.75 * 0.98, 0.97, 0.96, 0.95])


def test_a_short_run_warms_up_for_its_first_half() -> None:
    """A recipe's warm-up is longer than the whole run: the rates must still come to something."""
    schedule = Schedule(OptimiserConfig(schedule="linear", warmup_steps=500), total_steps=10)
    found = [schedule.factor(step) for step in range(10)]
    assert found == pytest.approx([0.2, 0.36, 0.48, 0.56, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert Schedule(OptimiserConfig(schedule="linear", warmup_steps=500), total_steps=1).factor(0) == 1.0


def test_schedule_state_comes_back() -> None:
    config = OptimiserConfig(schedule="halve", patience=3)
    schedule, resumed = Schedule(config, 10), Schedule(config, 10)
    for perplexity in (5, 6, 7, 8, 9):
        schedule.end_epoch(perplexity)
    resumed.load_state(schedule.state())
    for perplexity in (6, 6, 4, 5, 5, 5):
        schedule.end_epoch(perplexity)
        resumed.end_epoch(perplexity)
        assert (resumed.factor(0), resumed.state()) == (schedule.factor(0), schedule.state())
    assert schedule.factor(0) == 0.125
