"""Row-wise Adagrad and Adam equal the same done dense, by hand."""

from __future__ import annotations

import pytest
import torch

from bnce.config import LossConfig, ModelConfig, OptimiserConfig
from bnce.language_model import LanguageModel
from bnce.noise import unigram
from bnce.optimisers import build_optimiser
from bnce.optimisers.rowwise import Rowwise
from tests.optimisers.tiny import EPS, V, build, compute_gradients, dense_gradients


@pytest.mark.parametrize("loss", ["bnce", "softmax"])
@pytest.mark.parametrize("clip_norm", [0.05, 1000.0])
def test_rowwise_is_adagrad_by_row_and_adam_by_hand(loss: str, clip_norm: float) -> None:
    """Everything dense and in float64: one accumulator a row, of the mean squared clipped gradient; Adam's means."""
    model = build(loss)
    config = OptimiserConfig("rowwise", learning_rate=0.2, body_learning_rate=0.004, clip_norm=clip_norm)
    optimiser = build_optimiser(model, config)
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


def test_initial_accumulator_keeps_a_rows_first_step_small() -> None:
    steps = []
    for initial in (0.0, 1.0):
        model = LanguageModel(ModelConfig("relu-lstm", 5, 7, 4), LossConfig("bnce"), unigram(torch.arange(V, 0, -1)))
        optimiser = Rowwise(model, OptimiserConfig("rowwise", initial_accumulator=initial))
        assert all(
            bool((tensor == initial).all()) for name, tensor in optimiser.state_tensors().items() if "accum" in name
        )
        before = model.embedding.detach().clone()
        word_TB = torch.ones(2, 3, dtype=torch.int64)
        loss_sum, _ = model.loss_sum(word_TB, 2 * word_TB, model.initial_state(3))
        loss_sum.backward()
        optimiser.apply(optimiser.collect())
        steps.append(float((model.embedding.detach() - before).norm()))
    assert 0 < steps[1] < 0.5 * steps[0]
