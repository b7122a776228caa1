"""The rules' kernels against the losses' equations in float64, whose gradients PyTorch derives.

Legend: P problems, R rows, M columns, U different words, T time steps, B streams.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bnce.kernels.batch_nce import classification
from bnce.kernels.chunk import classification_or_ranking
from bnce.kernels.sampled_softmax import ranking
from bnce.kernels.softmax import cross_entropies

Check = Callable[[Tensor, Tensor, Tensor], None]
WRONG = float("nan")
narrow_too = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
counted_too = pytest.mark.parametrize("is_counted", [False, True])


class Block(NamedTuple):
    """What a rule is called with."""

    product_PRM: Tensor
    gradient_PRM: Tensor
    offset_PM: Tensor
    counts_PR: Tensor | None
    own_PR: Tensor | None
    rows: tuple[Tensor, ...]


def make(P: int, R: int, M: int, device: torch.device, dtype: torch.dtype, is_counted: bool) -> Block:
    """Make a block whose last column is padding; with counts, one row does not count and one's target is no word."""
    product_PRM = torch.randn(P, R, M, device=device).to(dtype)
    offset_PM = torch.randn(P, M, device=device)
    offset_PM[:, -1] = -torch.inf
    counts_PR = torch.ones(P, R, device=device)
    counts_PR[-1, 1], counts_PR[0, -1] = 0.0, WRONG
    return Block(product_PRM, product_PRM, offset_PM, counts_PR if is_counted else None, None, ())


def hold(block: Block, rule: Callable[[Block], Tensor], equation: Callable[..., Tensor], no_worse: Check) -> None:
    """Hold losses and gradients of a rule to those of an equation from scores, and own scores, to losses."""
    results = []
    for dtype in (torch.float32, torch.float64):
        score_PRM = (block.product_PRM.to(dtype) + block.offset_PM.to(dtype).unsqueeze(1)).requires_grad_()
        given = [score_PRM]
        if block.own_PR is not None:
            given.append(block.own_PR.to(dtype).clone().requires_grad_())
        loss_PR = equation(*given)
        counts_PR = torch.ones_like(loss_PR) if block.counts_PR is None else block.counts_PR.to(dtype)
        loss_PR = torch.where(counts_PR == 1, loss_PR, 0.0)
        grads = torch.autograd.grad(loss_PR.sum(), given)
        results.append([loss_PR.detach(), *(grad.nan_to_num(0.0) for grad in grads)])
    found_PR, gradient_PRM = rule(block), block.gradient_PRM
    if block.counts_PR is not None:
        assert torch.equal(found_PR.isnan(), block.counts_PR.isnan()), "a target that is no word"
        found_PR = found_PR.nan_to_num(0.0)
    found = [found_PR, gradient_PRM, *([] if block.own_PR is None else [block.own_PR])]
    for part, plain, exact in zip(found, *results, strict=True):
        assert part.isfinite().all()
        no_worse(part, plain.to(part.dtype), exact)


@counted_too
@narrow_too
def test_batch_nce(dtype: torch.dtype, is_counted: bool, device: torch.device, no_worse: Check) -> None:
    P, R, M = 3, 5, 8
    target_PR = torch.arange(R, device=device).expand(P, R)
    block = make(P, R, M, device, dtype, is_counted)._replace(rows=(target_PR,))
    if is_counted:
        block.offset_PM[-1, 1] = -torch.inf  # what does not count is noise to nobody

    def equation(score_PRM: Tensor) -> Tensor:
        is_own = F.one_hot(target_PR, M).bool()
        loss_PRM = torch.where(is_own, F.softplus(-score_PRM), F.softplus(score_PRM))
        return torch.where(score_PRM == -torch.inf, 0.0, loss_PRM).sum(2)

    hold(block, classification, equation, no_worse)


def test_batch_nce_puts_gradients_beside_products_of_another_type(device: torch.device) -> None:
    block = make(2, 3, 5, device, torch.float32, False)._replace(rows=(torch.arange(3, device=device).expand(2, 3),))
    narrow = block._replace(
        product_PRM=block.product_PRM.clone(), gradient_PRM=torch.empty_like(block.product_PRM, dtype=torch.bfloat16)
    )
    classification(narrow)
    classification(block)
    torch.testing.assert_close(narrow.gradient_PRM.float(), block.gradient_PRM, rtol=2**-7, atol=0)


@pytest.mark.parametrize("penalty", [0.0, 0.3])
@counted_too
@narrow_too
def test_softmax(dtype: torch.dtype, is_counted: bool, penalty: float, device: torch.device, no_worse: Check) -> None:
    R, V = 6, 21
    target_1R = torch.randint(V - 1, (1, R), device=device)
    block = make(1, R, V, device, dtype, is_counted)._replace(rows=(target_1R,))

    def equation(score_1RV: Tensor) -> Tensor:
        excess_1R = score_1RV[..., :-1].logsumexp(2)
        target_1R1 = target_1R.unsqueeze(2)
        return excess_1R - score_1RV.gather(2, target_1R1).squeeze(2) + penalty * excess_1R.square()

    hold(block, lambda block: cross_entropies(block, penalty=penalty), equation, no_worse)


@pytest.mark.parametrize("removes", [False, True])
@counted_too
@narrow_too
def test_sampled_softmax(
    dtype: torch.dtype, is_counted: bool, removes: bool, device: torch.device, no_worse: Check
) -> None:
    R, C = 6, 9
    block = make(1, R, C, device, dtype, is_counted)._replace(own_PR=torch.randn(1, R, device=device))
    word_K, target_1R = torch.randint(4, (C - 1,), device=device), torch.randint(4, (1, R), device=device)
    if removes:
        word_K[2:] = 3
        target_1R[0, :2] = torch.tensor([3, 1], device=device)
        block = block._replace(rows=(target_1R,))

    def equation(score_1RC: Tensor, own_1R: Tensor) -> Tensor:
        is_hit = target_1R.unsqueeze(2) == word_K if removes else torch.zeros(1, R, C - 1).bool()
        kept_1RC = score_1RC[..., :-1].masked_fill(is_hit.to(device), -1e30)
        return F.softplus(kept_1RC.logsumexp(2) - own_1R)

    hold(block, lambda block: ranking(block, *([word_K] if removes else [])), equation, no_worse)


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize(("beta", "penalty"), [(1.0, 0.0), (0.0, 0.1), (0.3, 0.2)])
@counted_too
@narrow_too
def test_chunk(
    dtype: torch.dtype,
    is_counted: bool,
    beta: float,
    penalty: float,
    is_merged: bool,
    device: torch.device,
    no_worse: Check,
) -> None:
    """In one stream a word stands twice, another word is nowhere else, and one position does not count."""
    T, B = 3, 4
    word_TB = torch.tensor([[0, 1, 2, 0], [3, 1, 0, 2], [3, 4, 1, 0]], device=device)
    stream_TB = torch.arange(B, device=device).expand(T, B)
    is_there_TB = torch.ones(T, B, dtype=torch.bool, device=device)
    is_there_TB[1, 2] = not is_counted
    column_TB = word_TB if is_merged else torch.arange(T * B, device=device).view(T, B)
    U = 6 if is_merged else T * B + 1  # the last column is nobody's
    is_own_RU = torch.stack([(F.one_hot(column_TB, U) * is_there_TB.unsqueeze(2)).sum(0)[b] for b in range(B)])
    count_U = is_own_RU.sum(0)
    noise_RU = (count_U - is_own_RU)[stream_TB.reshape(-1)].double()
    target_1R = torch.where(is_there_TB, column_TB, -1).view(1, -1)
    own_TB = torch.where(is_there_TB, column_TB, -1) if is_merged else None
    num_counted = U if is_merged else T * B
    block = make(1, T * B, U, device, dtype, is_counted)
    block = block._replace(rows=(target_1R, stream_TB.reshape(1, -1)))
    if is_counted:
        assert block.counts_PR is not None
        block.counts_PR[0, 6] = 0.0
        block = block._replace(rows=(*block.rows, torch.randn(1, T * B, device=device)))

    def equation(score_1RU: Tensor) -> Tensor:
        score_RU = score_1RU[0]
        for shift_1R in block.rows[2:]:
            score_RU = score_RU + shift_1R.t().to(score_RU.dtype)
        target_R = score_RU.gather(1, target_1R.clamp(min=0).t())[:, 0]
        weighted_RU = (score_RU + noise_RU.to(score_RU.dtype).log()).masked_fill(noise_RU == 0, -torch.inf)
        estimate_R = weighted_RU.logsumexp(1)
        ranking_R = F.softplus(estimate_R - target_R) + penalty * estimate_R.square()
        noise_R = (noise_RU * F.softplus(score_RU).nan_to_num(0.0)).sum(1) + F.softplus(-target_R)
        return ((1 - beta) * ranking_R + beta * noise_R).to(score_RU.dtype).unsqueeze(0)

    def rule(block: Block) -> Tensor:
        return classification_or_ranking(
            block, count_U[:num_counted].int(), own_TB, stream_TB, beta=beta, penalty=penalty
        )

    hold(block, rule, equation, no_worse)


def test_a_word_without_a_column_is_no_loss_of_zero(device: torch.device) -> None:
    block = make(1, 2, 3, device, torch.float32, False)
    rows = torch.tensor([[-2, 0]], device=device), torch.tensor([[0, 1]], device=device)
    own_TB = torch.tensor([[-2, 0]], device=device)
    count_U = torch.tensor([1, 1, 0], dtype=torch.int32, device=device)
    loss = classification_or_ranking(block._replace(rows=rows), count_U, own_TB, rows[1], beta=0.5, penalty=0.0)
    assert loss.isnan().tolist() == [[True, False]]
    assert not block.gradient_PRM[0, 0].any()
