"""The losses through their kernels against the plain forms in float32 and float64, values and gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import bnce
from bnce import LOSSES, OutputBatch, kernels
from bnce.losses import compute
from bnce.losses.sampled_softmax import sampled_softmax_

T, B, D, V = 3, 6, 8, 30
PENALTY = 0.2
Check = Callable[[Tensor, Tensor, Tensor], None]


def loss_and_gradients(
    name: str, leaves: list[Tensor], target: Tensor, most: int | None = None, **changes: Tensor | None
) -> list[Tensor]:
    hidden, weight, bias, log_z = leaves
    noise = bnce.noise.log_uniform(V).to(hidden.device)
    batch = OutputBatch(
        hidden,
        target,
        None,
        weight,
        bias,
        log_z,
        noise,
        num_noise=0,
        sparse=False,
        max_distinct_targets=most,
        penalty=PENALTY,
    )
    batch = dataclasses.replace(batch, **changes)
    loss = compute(LOSSES[name]()).total(batch)
    wanted = leaves if name != "softmax" else leaves[:3]
    return [loss, *torch.autograd.grad(2 * loss, wanted)]


@pytest.mark.parametrize("most", [None, 10])
@pytest.mark.parametrize("name", ["bnce", "chunk-bnce", "chunk-softmax"])
def test_masks_and_streams_are_those_of_the_plain_form(
    name: str, most: int | None, device: torch.device, no_worse: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [(T, B, D), (V, D), (V,), ()]
    leaves = [torch.randn(shape, device=device).requires_grad_() for shape in shapes]
    target = torch.randint(0, 10, (T, B), device=device)
    target[:, 0] = target[0, 0]  # a stream that says one word only
    valid = torch.rand(T, B, device=device) < 0.6
    valid[0] = torch.tensor([True] + [False] * (B - 1), device=device)  # one alone in its step
    double = [leaf.detach().double().requires_grad_() for leaf in leaves]
    kinds = [{}, {"valid_TB": valid}, {"valid_TB": torch.zeros_like(valid)}]
    if name != "bnce":
        kinds.append({"valid_TB": valid, "stream_TB": torch.randint(0, 4, (T, B), device=device) * 1000})
    for changes in kinds:
        with monkeypatch.context() as patch:
            fast = loss_and_gradients(name, leaves, target, most, **changes)
            patch.setattr(kernels, "_HAS_TRITON", False)
            plain = loss_and_gradients(name, leaves, target, **changes)
            exact = loss_and_gradients(name, double, target, **changes)
        for parts in zip(fast, plain, exact, strict=True):
            no_worse(*parts)


@pytest.mark.parametrize("penalty", [0.0, 0.3])
@pytest.mark.parametrize("num_words", [50, 51, 5000])
def test_softmax_kernel_puts_the_gradient_in_place(
    num_words: int, penalty: float, device: torch.device, no_worse: Check
) -> None:
    from bnce.kernels.softmax import loss_and_gradient_

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


@pytest.mark.parametrize("num_columns", [1, 50, 3000])
@pytest.mark.parametrize("remove_hits", [False, True])
def test_sampled_softmax_puts_the_gradient_in_place(
    remove_hits: bool, num_columns: int, device: torch.device, no_worse: Check
) -> None:
    R, C = 7, num_columns
    product, offset, own = (torch.randn(*shape, device=device) for shape in ((R, C), (C,), (R,)))
    offset[C // 2] = -torch.inf  # a column without a word
    words, targets = torch.randint(0, 40, (C,), device=device), torch.randint(0, 40, (R,), device=device)
    valid = torch.tensor([1, 1, 0, 1, 0, 1, 1], device=device).bool()

    def results(form: Callable[..., tuple[Tensor, Tensor]], dtype: torch.dtype) -> tuple[Tensor, ...]:
        gradient = product.to(dtype, copy=True)
        return *form(
            gradient, offset.to(dtype), own.to(dtype), words, targets, valid, remove_hits=remove_hits
        ), gradient

    exact = results(sampled_softmax_.__wrapped__, torch.float64)
    plain, fast = results(sampled_softmax_.__wrapped__, torch.float32), results(sampled_softmax_, torch.float32)
    for parts in zip(fast, plain, exact, strict=True):
        no_worse(*parts)
    assert not fast[2][~valid].any()
    assert torch.equal(fast[2][:, C // 2], torch.zeros(R, device=device))


@pytest.mark.parametrize("target", [-1, 51, 55, 10**9])
def test_softmax_of_a_target_that_is_no_word_is_not_a_number(target: int, device: torch.device) -> None:
    from bnce.kernels.softmax import loss_and_gradient_

    logit, bias = torch.randn(3, 56, device=device), torch.randn(51, device=device)
    words, valid = torch.tensor([5, target, target], device=device), torch.tensor([1, 1, 0], device=device).bool()
    loss, _ = loss_and_gradient_(logit, bias, words, valid, None, 0.0)
    assert loss.isnan().tolist() == [False, True, False], "the last one does not count"


@pytest.mark.parametrize(("num_steps", "num_streams", "num_words"), [(1, 2, 1), (3, 6, 4), (5, 7, 30), (20, 60, 30)])
def test_distinct_words_are_found_at_a_fixed_shape(
    num_steps: int, num_streams: int, num_words: int, device: torch.device
) -> None:
    from bnce.kernels.merged_chunk_nce import distinct_words

    target = torch.randint(0, num_words, (num_steps, num_streams), device=device)
    word, column, count, _ = distinct_words(target, 40, V)
    expected_word, expected_count = target.unique(return_counts=True)
    found = len(expected_word)
    assert torch.equal(word[column.long()], target)
    assert torch.equal(word[:found].sort().values, expected_word)
    assert torch.equal(count[word[:found].argsort()].cpu().long(), expected_count.cpu())
    assert not count[found:].any()


def test_a_target_that_is_no_word_gives_nan_and_writes_nowhere(device: torch.device) -> None:
    from bnce.kernels.distinct import scratch
    from bnce.kernels.merged_chunk_nce import distinct_words

    target = torch.randint(0, 10, (T, B), device=device)
    beyond = scratch(2 * V, target.device)[V:]  # of a larger table on the same device
    beyond.fill_(77)
    target[1, 2] = V + 3
    _, column, count, _ = distinct_words(target, 40, V)
    assert int(column[1, 2]) == -2
    assert int(count.sum()) == T * B - 1
    assert bool((beyond == 77).all())
    leaves = [torch.randn(shape, device=device).requires_grad_() for shape in [(T, B, D), (V, D), (V,), ()]]
    assert loss_and_gradients("chunk-bnce", leaves, target, most=20)[0].isnan()


@pytest.mark.parametrize("num_words", [1, 50, 5000])
def test_log_sum_exp_adds_the_bias(num_words: int, device: torch.device, no_worse: Check) -> None:
    from bnce.kernels.log_normaliser import log_sum_exp

    logit, bias = 30 * torch.randn(7, num_words, device=device), torch.randn(num_words, device=device)
    plain, exact = ((logit.to(dtype) + bias.to(dtype)).logsumexp(1) for dtype in (torch.float32, torch.float64))
    no_worse(log_sum_exp(logit, bias), plain, exact)
