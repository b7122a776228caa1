"""The losses through their kernels against the plain forms in float32 and float64, values and gradients."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bnce import kernels
from bnce.losses import LOSSES, OutputBatch
from bnce.noise import log_uniform

T, B, D, V = 3, 6, 8, 30
Check = Callable[[Tensor, Tensor, Tensor], None]


def loss_and_gradients(name: str, leaves: list[Tensor], target: Tensor) -> list[Tensor]:
    hidden, weight, bias, log_z = leaves
    noise = log_uniform(V).to(hidden.device)
    batch = OutputBatch(hidden, target, None, weight, bias, log_z, noise, 0, sparse=False)
    loss = LOSSES[name](batch)
    wanted = leaves if name != "softmax" else leaves[:3]
    return [loss, *torch.autograd.grad(2 * loss, wanted)]


@pytest.mark.parametrize("name", ["bnce", "chunk-bnce"])
def test_loss_equals_its_plain_form(
    name: str, device: torch.device, no_worse: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [(T, B, D), (V, D), (V,), ()]
    leaves = [torch.randn(shape, device=device).requires_grad_() for shape in shapes]
    target = torch.randint(0, 10, (T, B), device=device)  # many equal words
    fast = loss_and_gradients(name, leaves, target)
    monkeypatch.setattr(kernels, "available", lambda device: False)
    plain = loss_and_gradients(name, leaves, target)
    module = importlib.import_module("bnce.losses.chunk_nce" if name == "chunk-bnce" else "bnce.losses.batch_nce")
    # In float64 by autograd alone, from the form that holds all scores at once.
    double = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact_loss = all_scores_loss(name, double, target)
    exact = [exact_loss, *torch.autograd.grad(2 * exact_loss, double)]
    assert module.kernels is kernels
    for parts in zip(fast, plain, exact, strict=True):
        no_worse(*parts)


def all_scores_loss(name: str, leaves: list[Tensor], target: Tensor) -> Tensor:
    hidden, weight, bias, log_z = leaves
    noise = log_uniform(V).to(hidden.device).log_probs_V.double()
    total = torch.zeros((), dtype=torch.float64, device=hidden.device)
    for t in range(T):
        for b in range(B):
            own = target[t, b]
            columns = [(t, i) for i in range(B) if i != b]
            if name == "chunk-bnce":
                columns = [(s, i) for s in range(T) for i in range(B) if i != b]
            words = torch.stack([own, *(target[place] for place in columns)])
            score = weight[words] @ hidden[t, b] + bias[words] - log_z - noise[words]
            score = score - torch.log(torch.tensor(float(len(columns)), dtype=torch.float64))
            total = total + torch.nn.functional.softplus(-score[0]) + torch.nn.functional.softplus(score[1:]).sum()
    return total


@pytest.mark.parametrize("num_words", [50, 51, 5000])
def test_softmax_kernel_puts_the_gradient_in_place(num_words: int, device: torch.device, no_worse: Check) -> None:
    from bnce.kernels.softmax import loss_and_gradient_

    N, padding = 7, -num_words % 8
    logit = torch.randn(N, num_words + padding, device=device)
    bias = torch.randn(num_words, device=device)
    target, valid = (
        torch.randint(0, num_words, (N,), device=device),
        torch.tensor([1, 1, 0, 1, 0, 1, 1], device=device).bool(),
    )
    results = []
    for dtype in (torch.float32, torch.float64):
        score = logit[:, :num_words].to(dtype) + bias.to(dtype)
        loss = torch.nn.functional.cross_entropy(score, target, reduction="none") * valid
        error = (torch.softmax(score, 1) - torch.nn.functional.one_hot(target, num_words)) * valid.unsqueeze(1)
        results.append((loss, error))
    loss = loss_and_gradient_(logit, bias, target, valid)
    no_worse(loss, results[0][0], results[1][0])
    no_worse(logit[:, :num_words], results[0][1], results[1][1])
    assert not logit[:, num_words:].any(), "padding has no gradient"
