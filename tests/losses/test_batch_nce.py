"""What B-NCE learns, and the mistakes that must not pass for it: each is far from the loss, and learns something else.

Legend: T time steps, B streams, K drawn words, M columns (B + K), D hidden, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from making import layer_of
from torch import Tensor

from bnce import OutputLayer
from tests.losses import reference

D, V = 6, 11


class Step(NamedTuple):
    """One time step at a layer, whose K words are drawn already."""

    layer: OutputLayer
    hidden_BD: Tensor
    target_B: Tensor
    drawn_K: Tensor


def scores_of(step: Step, *, log_num_noise: float | None = None) -> tuple[Tensor, Tensor]:
    """Compute the scores (B, M) and the columns (M,)."""
    layer, column_M = step.layer, torch.cat([step.target_B, step.drawn_K])
    log_m = math.log(len(column_M) - 1) if log_num_noise is None else log_num_noise
    offset_M = layer.bias[column_M] - layer.log_z - layer.noise.log_prob(column_M) - log_m
    return step.hidden_BD @ layer.weight[column_M].t() + offset_M, column_M


def loss_of_scores(score_BM: Tensor) -> Tensor:
    is_own_BM = torch.eye(*score_BM.shape, dtype=torch.bool)
    return F.softplus(torch.where(is_own_BM, -score_BM, score_BM)).sum()


# The three classic mistakes. The comparison with the equation must be able to see each of them.


def mask_accidental_hits(step: Step) -> Tensor:
    """Leave out the noise words that equal the row's own target, as sampled softmax does."""
    score_BM, column_M = scores_of(step)
    hit_BM = step.target_B.unsqueeze(1) == column_M
    return torch.where(hit_BM, 0.0, F.softplus(score_BM)).sum() + F.softplus(-score_BM.diagonal()).sum()


def drop_log_num_noise(step: Step) -> Tensor:
    """Forget M."""
    return loss_of_scores(scores_of(step, log_num_noise=0.0)[0])


def deduplicate(step: Step) -> Tensor:
    """Score every different word once, and forget how many they were."""
    score_BM, column_M = scores_of(step)
    unique_U, place_M = torch.unique(column_M, return_inverse=True)
    first_U = torch.tensor([column_M.tolist().index(word) for word in unique_U.tolist()])
    score_BU, own_B = score_BM[:, first_U], place_M[: len(score_BM)].unsqueeze(1)
    # A position's own occurrence is data: its term changes from softplus(s) to softplus(−s).
    return F.softplus(score_BU).sum() - score_BU.gather(1, own_B).sum()


MISTAKES = [mask_accidental_hits, drop_log_num_noise, deduplicate]


@pytest.mark.parametrize("K", [0, 4])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_seen(mistake: Callable[[Step], Tensor], K: int) -> None:
    """On a step with duplicates."""
    generator = torch.Generator().manual_seed(1)
    layer = layer_of(D, V, torch.arange(V, 0, -1), "bnce", num_noise=K, log_z=2.5, reduction="sum", dtype=torch.float64)
    with torch.no_grad():
        layer.weight.normal_(std=0.5, generator=generator)
    hidden_BD = torch.randn(8, D, generator=generator, dtype=torch.float64)
    target_B = torch.randint(4, (8,), generator=generator)
    torch.manual_seed(7)
    step = Step(layer, hidden_BD, target_B, layer.noise.sample((1, K))[0] if K else torch.zeros(0, dtype=torch.int64))
    assert len(set(target_B.tolist())) < 8, "a target stands twice"
    expected = loss_of_scores(scores_of(step)[0])
    torch.manual_seed(7)
    torch.testing.assert_close(layer(hidden_BD, target_B), expected)
    torch.manual_seed(7)
    torch.testing.assert_close(reference.losses(layer, hidden_BD.unsqueeze(0), target_B.unsqueeze(0)).sum(), expected)
    assert abs(mistake(step) - expected) > 1e-3 * expected


# Two contexts, three words, and a batch in exactly the proportions of the distribution.

COUNTS = torch.tensor([[100, 60, 40], [20, 20, 160]])  # context × word


def step_at_the_truth() -> Step:
    """Give a layer that answers p(w | c) exactly and is normalised by Z, before a batch drawn from p(w | c)."""
    pairs = [(context, word) for context in (0, 1) for word in (0, 1, 2) for _ in range(int(COUNTS[context, word]))]
    context_B, target_B = torch.tensor(pairs).unbind(1)
    layer = layer_of(2, 3, COUNTS.sum(0), "bnce", log_z=9.0, reduction="sum")
    with torch.no_grad():
        layer.weight.copy_((COUNTS / COUNTS.sum(1, keepdim=True)).t().log() + 9.0)
        layer.bias.zero_()
    return Step(layer, F.one_hot(context_B, 2).float(), target_B, torch.zeros(0, dtype=torch.int64))


def pull(step: Step, loss: Tensor) -> float:
    """Measure how far the loss wants to move any score, in units of how firmly it holds it there."""
    layer = step.layer
    (grad_VD,) = torch.autograd.grad(loss, layer.weight)
    noise_VD = torch.outer(COUNTS.sum(0), COUNTS.sum(1)).float()  # noise terms a word has in a context
    data_VD = torch.sigmoid(layer.weight.detach() - 9.0 - math.log(399) - layer.noise.log_probs_V.unsqueeze(1))
    return float((grad_VD / (noise_VD * data_VD)).abs().max())


def test_the_true_distribution_is_where_the_gradient_vanishes() -> None:
    step = step_at_the_truth()
    # A position is not its own noise: of the 60 to 200 occurrences of a word one is missing, in its own row alone.
    assert pull(step, step.layer(step.hidden_BD, step.target_B)) < 0.01


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_learn_something_else(mistake: Callable[[Step], Tensor]) -> None:
    step = step_at_the_truth()
    assert pull(step, mistake(step)) > 0.2
