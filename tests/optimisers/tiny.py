"""A tiny model with gradients, for every optimiser to step."""

from __future__ import annotations

import torch
from making import loss_of, model_of
from torch import Tensor

from bnce import LOSSES, noise
from bnce.language_model import LanguageModel
from bnce.optimisers.gradients import Gradients
from bnce.optimisers.optimiser import Optimiser

V, B, T = 17, 4, 5
EPS = torch.finfo(torch.float32).eps


def build(loss: str = "bnce") -> LanguageModel:
    """Make a model away from its start, where the gradients of B-NCE nearly cancel."""
    torch.manual_seed(1)
    record = loss_of(loss, learn_log_z=LOSSES[loss]().normalises)
    model = LanguageModel(model_of("relu-lstm", 5, 7, 4), record, noise.unigram(torch.arange(V, 0, -1)))
    with torch.no_grad():
        model.embedding.mul_(10)
        model.output.weight.mul_(20)
    return model


def compute_gradients(model: LanguageModel, step: int, num_words: int = V // 2) -> None:
    """Run a chunk of the first words, in which words repeat, forward and backward."""
    generator = torch.Generator().manual_seed(step)
    device = model.embedding.device
    input_LB = torch.randint(num_words, (T, B), generator=generator).to(device)
    target_TB = torch.randint(num_words, (T, B), generator=generator).to(device)
    loss, _ = model.loss_sum(input_LB, target_TB, model.initial_state(B))
    (loss / B).backward()


def step(optimiser: Optimiser) -> Gradients:
    """Step against the gradients at hand, and give them."""
    gradients = optimiser.reduce([optimiser.take()])
    optimiser.apply(gradients)
    return gradients


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
