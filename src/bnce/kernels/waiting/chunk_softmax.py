"""The elementwise part of chunk softmax: from a block of products to its loss and gradient, in place, in two passes.

The first pass finds the logarithm of the noise's sum, the second writes gradients. Own words stand beside both: their
scores are read first, and −∞ takes their places, so that the sum has only what is left of their counts.

Legend: T time steps, B streams, N = T·B positions, R positions of a block, U columns of different words.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bnce.kernels.columns import sigmoid, softplus

BLOCK = 1024
# Below every score, and a number: with −∞, nothing less nothing would be none.
LOWEST: tl.constexpr = tl.constexpr(-1e30)


@triton.jit
def _joined(most, total, score, weight):
    """Add weight · exp(score) to total · exp(most), lane by lane, and give the new pair."""
    score = tl.where(weight > 0, score, LOWEST)
    larger = tl.maximum(most, score)
    return larger, total * tl.exp(most - larger) + weight * tl.exp(score - larger)


@triton.jit
def _logarithm(most, total):
    """Give the logarithm of what all lanes add up to."""
    largest = tl.max(most)
    return largest + tl.log(tl.sum(total * tl.exp(most - largest)))


@triton.jit
def _by_position(
    product_RN, offset_N, stream_N, log_num_noise_N, loss_R, begin, penalty, N: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    position = begin + row
    stream = tl.load(stream_N + position)
    log_num_noise = tl.load(log_num_noise_N + position)
    target = tl.load(product_RN + row * N + position).to(tl.float32) + tl.load(offset_N + position) - log_num_noise
    most = tl.full((BLOCK,), LOWEST, dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, N, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < N
        score = tl.load(product_RN + row * N + column, mask=inside, other=0.0).to(tl.float32) - log_num_noise
        score += tl.load(offset_N + column, mask=inside, other=0.0)
        other = tl.load(stream_N + column, mask=inside, other=-1)
        weight = ((other != stream) & (other >= 0)).to(tl.float32)
        most, total = _joined(most, total, score, weight)
    counts = stream >= 0
    estimate = tl.where(counts, _logarithm(most, total), 0.0)
    push = sigmoid(estimate - target)
    pull = push + 2.0 * penalty * estimate
    tl.store(loss_R + row, tl.where(counts, softplus(estimate - target) + penalty * estimate * estimate, 0.0))
    tl.debug_barrier()
    for first in range(0, N, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < N
        place = product_RN + row * N + column
        score = tl.load(place, mask=inside, other=0.0).to(tl.float32) - log_num_noise
        score += tl.load(offset_N + column, mask=inside, other=0.0)
        other = tl.load(stream_N + column, mask=inside, other=-1)
        is_noise = (other != stream) & (other >= 0)
        gradient = tl.where(is_noise, pull * tl.exp(tl.where(is_noise, score - estimate, 0.0)), 0.0)
        gradient = tl.where(counts, tl.where(column == position, -push, gradient), 0.0)
        tl.store(place, gradient.to(product_RN.dtype.element_ty), mask=inside)


def loss_and_gradient_(
    product_RN: Tensor, offset_N: Tensor, stream_N: Tensor, log_num_noise_N: Tensor, begin: int, penalty: float
) -> Tensor:
    """Compute the loss of the positions from `begin` on; in the products' place comes the gradient of their scores."""
    R, N = product_RN.shape
    loss_R = torch.empty(R, dtype=torch.float32, device=product_RN.device)
    block = min(2048, triton.next_power_of_2(N))
    _by_position[(R,)](
        product_RN, offset_N, stream_N, log_num_noise_N, loss_R, begin, penalty, N=N, BLOCK=block, num_warps=8
    )
    return loss_R.sum()


@triton.jit
def _merged(
    product_RU,
    offset_U,
    count_U,
    column_TB,
    sizes,
    loss_N,
    begin,
    penalty,
    T,
    B,
    U: tl.constexpr,
    STEPS: tl.constexpr,
    COUNTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = product_RU + tl.program_id(0).to(tl.int64) * U
    position = begin + tl.program_id(0)
    stream = position % B
    target = tl.load(column_TB + position)
    num_noise = (B - 1) * T
    log_num_noise = 0.0  # where all see as many, it is in the offset
    if COUNTED:
        num_noise = tl.load(sizes + 1) - tl.load(sizes + 2 + stream)
        log_num_noise = tl.log(tl.maximum(num_noise, 1).to(tl.float32))
    if target < 0 or num_noise <= 0:
        # A position that does not count; or whose target found no column, such as one that is no word.
        for first in range(0, U, BLOCK):
            column = first + tl.arange(0, BLOCK)
            tl.store(place + column, tl.zeros((BLOCK,), product_RU.dtype.element_ty), mask=column < U)
        tl.store(loss_N + position, tl.where(target == -2, float("nan"), 0.0))
    else:
        step = tl.arange(0, STEPS)
        own = tl.load(column_TB + step * B + stream, mask=step < T, other=-1)
        is_own = own >= 0
        own_score = tl.load(place + own, mask=is_own, other=0.0).to(tl.float32) - log_num_noise
        own_score += tl.load(offset_U + own, mask=is_own, other=0.0)
        # An own word that occurs several times in its stream stands here as often: each brings its part.
        times = tl.sum((own[:, None] == own[None, :]).to(tl.float32), 1)
        others = tl.load(count_U + own, mask=is_own, other=0).to(tl.float32) - times
        target_score = tl.load(place + target).to(tl.float32) + tl.load(offset_U + target) - log_num_noise
        # Every lane must have read its scores before one of them writes over them.
        tl.debug_barrier()
        tl.store(place + own, tl.full((STEPS,), float("-inf"), product_RU.dtype.element_ty), mask=is_own)
        tl.debug_barrier()
        most = tl.full((BLOCK,), LOWEST, dtype=tl.float32)
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        for first in range(0, U, BLOCK):
            column = first + tl.arange(0, BLOCK)
            inside = column < U
            score = tl.load(place + column, mask=inside, other=float("-inf")).to(tl.float32) - log_num_noise
            score += tl.load(offset_U + column, mask=inside, other=0.0)
            count = tl.load(count_U + column, mask=inside, other=0).to(tl.float32)
            most, total = _joined(most, total, score, tl.where(score > float("-inf"), count, 0.0))
        own_weight = tl.where(is_own, others / times, 0.0)
        own_most = tl.where(own_weight > 0, own_score, LOWEST)
        largest = tl.maximum(tl.max(most), tl.max(own_most))
        sum_all = tl.sum(total * tl.exp(most - largest)) + tl.sum(own_weight * tl.exp(own_most - largest))
        estimate = largest + tl.log(sum_all)
        push = sigmoid(estimate - target_score)
        pull = push + 2.0 * penalty * estimate
        own_gradient = tl.where(others > 0, others * pull * tl.exp(own_score - estimate), 0.0)
        own_gradient -= tl.where(own == target, push, 0.0)
        for first in range(0, U, BLOCK):
            column = first + tl.arange(0, BLOCK)
            inside = column < U
            score = tl.load(place + column, mask=inside, other=float("-inf")).to(tl.float32) - log_num_noise
            score += tl.load(offset_U + column, mask=inside, other=0.0)
            count = tl.load(count_U + column, mask=inside, other=0).to(tl.float32)
            is_noise = (count > 0) & (score > float("-inf"))
            gradient = tl.where(is_noise, count * pull * tl.exp(tl.where(is_noise, score - estimate, 0.0)), 0.0)
            tl.store(place + column, gradient.to(product_RU.dtype.element_ty), mask=inside)
        tl.store(loss_N + position, softplus(estimate - target_score) + penalty * estimate * estimate)
        tl.debug_barrier()
        # Equal words of the stream write equal values to one place.
        tl.store(place + own, own_gradient.to(product_RU.dtype.element_ty), mask=is_own)


def merged_loss_and_gradient_(
    product_RU: Tensor,
    offset_U: Tensor,
    count_U: Tensor,
    column_TB: Tensor,
    sizes: Tensor | None,
    loss_N: Tensor,
    begin: int,
    penalty: float,
) -> None:
    """Write the loss of the positions from `begin` on; in the products' place comes the gradient of their scores."""
    (R, U), (T, B) = product_RU.shape, column_TB.shape
    _merged[(R,)](
        product_RU,
        offset_U,
        count_U,
        column_TB,
        count_U if sizes is None else sizes,  # any pointer will do where none is read
        loss_N,
        begin,
        penalty,
        T,
        B,
        U=U,
        STEPS=triton.next_power_of_2(T),
        COUNTED=sizes is not None,
        BLOCK=min(BLOCK, triton.next_power_of_2(U)),
        num_warps=4,
    )
