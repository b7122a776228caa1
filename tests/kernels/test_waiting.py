"""Kernels that wait until their successors were measured: they load, and one of them is held to float64."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bnce.kernels import waiting

Check = Callable[[Tensor, Tensor, Tensor], None]


def test_they_load() -> None:
    names = [module.name for module in pkgutil.iter_modules(waiting.__path__)]
    assert len(names) == 7
    for name in names:
        assert importlib.import_module(f"{waiting.__name__}.{name}").__doc__


@pytest.mark.parametrize("penalty", [0.0, 0.3])
@pytest.mark.parametrize("num_words", [50, 51, 5000])
def test_softmax_kernel_puts_the_gradient_in_place(
    num_words: int, penalty: float, device: torch.device, no_worse: Check
) -> None:
    from bnce.kernels.waiting.softmax import loss_and_gradient_

    N, padding = 7, -num_words % 8
    logit = torch.randn(N, num_words + padding, device=device)
    bias = torch.randn(num_words, device=device)
    target, valid = (
        torch.randint(0, num_words, (N,), device=device),
        torch.tensor([1, 1, 0, 1, 0, 1, 1], device=device).bool(),
    )
    log_z = torch.tensor(2.5, device=device)
    results = []
    for dtype in (torch.float32, torch.float64):
        score = logit[:, :num_words].to(dtype) + bias.to(dtype)
        excess = score.logsumexp(1) - log_z
        loss = torch.nn.functional.cross_entropy(score, target, reduction="none") + penalty * excess.square()
        pull = torch.softmax(score, 1) * (1 + 2 * penalty * excess).unsqueeze(1)
        error = (pull - torch.nn.functional.one_hot(target, num_words)) * valid.unsqueeze(1)
        results.append((loss * valid, error, excess * valid))
    loss, excess = loss_and_gradient_(logit, bias, target, valid, log_z if penalty else None, penalty)
    no_worse(loss, results[0][0], results[1][0])
    no_worse(logit[:, :num_words], results[0][1], results[1][1])
    if penalty:
        no_worse(excess, results[0][2], results[1][2])
    assert not logit[:, num_words:].any(), "padding has no gradient"


@pytest.mark.parametrize("target", [-1, 51, 55, 10**9])
def test_softmax_of_a_target_that_is_no_word_is_not_a_number(target: int, device: torch.device) -> None:
    from bnce.kernels.waiting.softmax import loss_and_gradient_

    logit, bias = torch.randn(3, 56, device=device), torch.randn(51, device=device)
    words, valid = torch.tensor([5, target, target], device=device), torch.tensor([1, 1, 0], device=device).bool()
    loss, _ = loss_and_gradient_(logit, bias, words, valid, None, 0.0)
    assert loss.isnan().tolist() == [False, True, False], "the last one does not count"
