"""Row-wise Adagrad and row-wise Adam with Adam equal the same done dense, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from making import optimiser_of
from torch import Tensor

from bnce.optimisers.optimiser import INITIAL_ACCUMULATOR, build_optimiser
from tests.optimisers import tiny
from tests.optimisers.tiny import EPS, V, build, compute_gradients, dense_gradients


def adagrad(square_V: Tensor, grad_V: Tensor) -> tuple[Tensor, Tensor]:
    square_V = square_V + grad_V
    return square_V, square_V.sqrt() + 1e-8


def adam(square_V: Tensor, grad_V: Tensor) -> tuple[Tensor, Tensor]:
    """Decay every row, touched or not."""
    square_V = 0.99 * square_V + 0.01 * grad_V
    return square_V, square_V.sqrt() + 1e-3


RULES: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {"rowwise": adagrad, "rowwise-adam": adam}
STARTS = {"rowwise": INITIAL_ACCUMULATOR, "rowwise-adam": 0.0}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("loss", ["bnce", "softmax"])
@pytest.mark.parametrize("clip_norm", [0.05, 1000.0])
def test_tables_step_by_row_and_the_body_by_adam(name: str, loss: str, clip_norm: float) -> None:
    """Everything dense and in float64: one number per row, of the mean squared clipped gradient; Adam's means."""
    model = build(loss)
    config = optimiser_of(name, learning_rate=0.2, body_learning_rate=0.004, clip_norm=clip_norm, eps=1e-3)
    optimiser = build_optimiser(model, config)
    values = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    squares = {part: torch.full((V,), STARTS[name], dtype=torch.float64) for part in model.tables()}
    means = {name: (torch.zeros_like(values[name]), torch.zeros_like(values[name])) for name in model.body_parameters()}
    num_rests = 0
    for step, factor in enumerate((1.0, 0.5, 0.25, 0.25, 0.25), start=1):
        compute_gradients(model, step, num_words=V // 2 if step % 2 else V // 4)
        num_rests += int((model.embedding.grad.to_dense() == 0).all(1)[: V // 2].sum())
        grads = {name: grad.double() for name, grad in dense_gradients(model).items()}
        optimiser.set_factor(factor)
        tiny.step(optimiser)

        norm = torch.stack([grad.square().sum() for grad in grads.values()]).sum().sqrt()
        clip = min(1.0, clip_norm / (norm.item() + 1e-6))
        for part, unclipped in grads.items():
            grad = clip * unclipped
            if part in squares:
                squares[part], divisor_V = RULES[name](squares[part], grad.square().reshape(V, -1).mean(1))
                change = grad / divisor_V.reshape(-1, *[1] * (grad.ndim - 1))
                values[part] = values[part] - 0.2 * factor * change
            else:
                first, second = means[part]
                first, second = 0.9 * first + 0.1 * grad, 0.99 * second + 0.01 * grad.square()
                means[part] = first, second
                corrected = (second / (1 - 0.99**step)).sqrt() + 1e-8
                values[part] = values[part] - 0.004 * factor * (first / (1 - 0.9**step)) / corrected
        for part, parameter in model.named_parameters():
            # Both start from the same float32 gradient; steps of at most 0.7 are rounded a few times.
            torch.testing.assert_close(parameter.detach().double(), values[part], rtol=16 * EPS, atol=8 * EPS)
    assert num_rests > 4, "rows rest for some steps and come back"
