"""SGD on touched rows equals PyTorch's with dense gradients."""

from __future__ import annotations

import pytest
import torch
from making import optimiser_of

from bnce.optimisers.optimiser import build_optimiser
from tests.optimisers import tiny
from tests.optimisers.tiny import EPS, assert_same_parameters, build, compute_gradients, dense_gradients


@pytest.mark.parametrize("loss", ["bnce", "softmax"])
@pytest.mark.parametrize("clip_norm", [0.05, 1000.0])
def test_sgd_is_torch_s_sgd_with_dense_gradients(loss: str, clip_norm: float) -> None:
    found, expected = build(loss), build(loss)
    ours = build_optimiser(found, optimiser_of("sgd", learning_rate=0.4, clip_norm=clip_norm))
    theirs = torch.optim.SGD(expected.parameters(), lr=0.4)
    for step, factor in enumerate((1.0, 1.0, 0.5)):
        compute_gradients(found, step)
        ours.set_factor(factor)
        gradients = tiny.step(ours)

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
