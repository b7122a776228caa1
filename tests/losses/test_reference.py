"""The float64 equations themselves: against plain arithmetic, and against each other."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.losses import reference

LOG_Z = 2.0


def a_step(B: int, K: int, V: int = 7, D: int = 3) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(10 * B + K)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    probs_V = torch.rand(V, generator=generator, dtype=torch.float64) + 0.1
    target_B = torch.randint(3, (B,), generator=generator)
    drawn_K = torch.randint(V, (K,), generator=generator)
    return normal(B, D), normal(V, D), normal(V), target_B, drawn_K, probs_V / probs_V.sum()


def test_batch_nce_by_hand() -> None:
    """Two positions, one drawn word, every number of the paper's Section 3 written out."""
    hidden_BD = torch.tensor([[1.0], [2.0]])
    weight_VD, bias_V = torch.tensor([[0.5], [-0.25], [1.0]]), torch.tensor([0.1, 0.2, -0.3])
    noise_V = torch.tensor([0.5, 0.3, 0.2])
    target_B, drawn_K = torch.tensor([0, 1]), torch.tensor([2])
    M = 2  # B + K − 1

    def data(hidden: float, word: int) -> float:
        model = math.exp(hidden * float(weight_VD[word, 0]) + float(bias_V[word])) / math.exp(LOG_Z)
        return model / (model + M * float(noise_V[word]))

    expected = -math.log(data(1.0, 0)) - math.log(1 - data(1.0, 1)) - math.log(1 - data(1.0, 2))
    expected += -math.log(data(2.0, 1)) - math.log(1 - data(2.0, 0)) - math.log(1 - data(2.0, 2))
    loss = reference.batch_nce_loss(hidden_BD, weight_VD, bias_V, target_B, drawn_K, noise_V, LOG_Z)
    assert float(loss) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("B", "K"), [(2, 0), (5, 0), (4, 3), (1, 2)])
def test_gradient_equations_are_the_derivative_of_the_loss(B: int, K: int) -> None:
    hidden_BD, weight_VD, bias_V, target_B, drawn_K, probs_V = a_step(B, K)
    reference.batch_nce_loss(hidden_BD, weight_VD, bias_V, target_B, drawn_K, probs_V, LOG_Z).backward()
    with torch.no_grad():
        G, weight_error_DM, bias_error_M, hidden_error_BD = reference.batch_nce_gradient(
            hidden_BD, weight_VD, bias_V, target_B, drawn_K, probs_V, LOG_Z
        )
    words_M = torch.cat([target_B, drawn_K])
    assert G.shape == (B, B + K)
    # "Some words may occur more than once in the batch": their errors add up.
    weight_error_VD = torch.zeros_like(weight_VD).index_add_(0, words_M, weight_error_DM.t())
    bias_error_V = torch.zeros_like(bias_V).index_add_(0, words_M, bias_error_M)
    torch.testing.assert_close(hidden_BD.grad, hidden_error_BD, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(weight_VD.grad, weight_error_VD, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(bias_V.grad, bias_error_V, rtol=1e-11, atol=1e-13)


def test_softmax_sums_to_one_and_gives_the_loss() -> None:
    scores_V = torch.tensor([0.3, -1.0, 2.0])
    total = sum(float(reference.softmax_probability(scores_V, word)) for word in range(3))
    assert total == pytest.approx(1.0, abs=1e-15)
    loss = reference.softmax_loss(torch.ones(1, 1), scores_V.reshape(3, 1), torch.zeros(3), torch.tensor([2]))
    expected = math.log(sum(math.exp(float(score)) for score in scores_V)) - float(scores_V[2])
    assert float(loss) == pytest.approx(expected, rel=1e-12)
