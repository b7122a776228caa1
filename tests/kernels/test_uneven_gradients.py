"""A loss may be weighted unevenly before the backward pass: by position with reduction "none", else by call.

Every loss that has kernels is held to its equation in float64, with all scores at once and gradients by autograd, as
closely as the same equation in float32 is. Legend: T time steps, B streams, N = T·B positions, C columns, D hidden,
K drawn words, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from making import layer_of
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from bnce import OutputLayer

T, B, D, V, K = 4, 6, 9, 30, 5
IGNORED = -100
PENALTY = 0.2
SEED = 3
CALL_WEIGHTS = (0.4, -1.5, 0.0, 2.0)
Check = Callable[[Tensor, Tensor, Tensor], None]


class Kind(NamedTuple):
    """A loss with its options."""

    loss: str
    options: dict[str, object]

    @property
    def draws(self) -> bool:
        return "num_noise" in self.options


KINDS = {
    "bnce": Kind("bnce", {"learn_log_z": True}),
    "bnce by row": Kind("bnce", {"learn_log_z": True, "sparse": True}),
    "bnce with drawn words": Kind("bnce", {"learn_log_z": True, "num_noise": K}),
    "chunk-bnce": Kind("chunk-bnce", {"learn_log_z": True}),
    "chunk-bnce with words merged": Kind("chunk-bnce", {"learn_log_z": True, "most": 12}),
    "chunk-bnce with words merged, by row": Kind("chunk-bnce", {"learn_log_z": True, "most": 12, "sparse": True}),
    "chunk-softmax": Kind("chunk-softmax", {"penalty": PENALTY}),
    "chunk-softmax with words merged": Kind("chunk-softmax", {"penalty": PENALTY, "most": 12}),
    "softmax": Kind("softmax", {}),
    "self-normalised-softmax": Kind("self-normalised-softmax", {"penalty": PENALTY}),
    "sampled-softmax": Kind("sampled-softmax", {"num_noise": K}),
}


class Call(NamedTuple):
    """What one call of a layer gets, and how its loss is weighted."""

    hidden_TBD: Tensor
    target_TB: Tensor
    mask_TB: Tensor
    weight: Tensor


def equation(kind: Kind, layer: OutputLayer, call: Call) -> Tensor:
    """Compute the loss of every position (T, B) in the layer's type; one that does not count has 0."""
    dtype, device = layer.weight.dtype, layer.weight.device
    counts_N = ((call.target_TB != IGNORED) & call.mask_TB).flatten()
    word_N = torch.where(counts_N, call.target_TB.flatten(), 0)
    hidden_ND, log_p_V = call.hidden_TBD.flatten(0, 1), layer.noise.log_probs_V.to(dtype)
    score_NV = hidden_ND @ layer.weight.t() + layer.bias
    own_N = score_NV.gather(1, word_N.unsqueeze(1)).squeeze(1)
    if kind.loss in ("softmax", "self-normalised-softmax"):
        excess_N = score_NV.logsumexp(1) - layer.log_z
        loss_N = cross_entropy(score_NV, word_N, reduction="none")
        loss_N = loss_N + (PENALTY * excess_N.square() if "penalty" in kind.options else 0)
        return torch.where(counts_N, loss_N, 0).reshape(T, B)

    # The same words for every position, or for every step; B-NCE draws for each step.
    torch.manual_seed(SEED)
    if kind.loss == "sampled-softmax":
        drawn_K = layer.noise.sample((K,))
        drawn_NK = score_NV[:, drawn_K] - log_p_V[drawn_K]
        loss_N = torch.cat([(own_N - log_p_V[word_N]).unsqueeze(1), drawn_NK], 1).logsumexp(1)
        return torch.where(counts_N, loss_N - own_N + log_p_V[word_N], 0).reshape(T, B)
    step_N, stream_N = torch.arange(T * B, device=device) // B, torch.arange(T * B, device=device) % B
    is_noise_NC = counts_N & (stream_N.unsqueeze(1) != stream_N)
    if kind.loss == "bnce":
        is_noise_NC &= step_N.unsqueeze(1) == step_N
    num_noise_N = is_noise_NC.sum(1) + (K if kind.draws else 0)
    trained_N = counts_N & (num_noise_N > 0)
    offset_V = layer.log_z + log_p_V
    log_m_N = num_noise_N.clamp(min=1).to(dtype).log()
    odds_NV = score_NV - offset_V - log_m_N.unsqueeze(1)
    own_N, noise_NC = odds_NV.gather(1, word_N.unsqueeze(1)).squeeze(1), odds_NV[:, word_N]
    if kind.loss == "chunk-softmax":
        # A position without noise, which is left out below, sees itself, so that no gradient is NaN.
        is_seen_NC = is_noise_NC | torch.eye(T * B, dtype=torch.bool, device=device)
        is_seen_NC = torch.where(is_noise_NC.any(1, keepdim=True), is_noise_NC, is_seen_NC)
        estimate_N = noise_NC.masked_fill(~is_seen_NC, -torch.inf).logsumexp(1)
        loss_N = softplus(estimate_N - own_N) + PENALTY * estimate_N.square()
    else:
        loss_N = softplus(-own_N) + torch.where(is_noise_NC, softplus(noise_NC), 0).sum(1)
    if kind.draws:
        drawn_TK = layer.noise.sample((T, K))
        loss_N = loss_N + softplus(odds_NV.gather(1, drawn_TK[step_N])).sum(1)
    return torch.where(trained_N, loss_N, 0).reshape(T, B)


def by_equation(kind: Kind, reduction: str, layer: OutputLayer, call: Call) -> Tensor:
    """Reduce the equation's losses as the layer does."""
    loss_TB = equation(kind, layer, call)
    if reduction == "none":
        return loss_TB
    num_trained = int((loss_TB != 0).sum())
    return loss_TB.sum() / (max(1, num_trained) if reduction == "mean" else 1)


def by_layer(kind: Kind, reduction: str, layer: OutputLayer, call: Call) -> Tensor:
    torch.manual_seed(SEED)
    loss: Tensor = layer(call.hidden_TBD, call.target_TB, call.mask_TB)
    return loss


def weighted(
    compute: Callable[[Kind, str, OutputLayer, Call], Tensor],
    kind: Kind,
    reduction: str,
    layer: OutputLayer,
    calls: list[Call],
) -> list[Tensor]:
    """Give the losses of all calls, and the gradients of their weighted sum."""
    layer.zero_grad()
    dtype = layer.weight.dtype
    own = [call._replace(hidden_TBD=call.hidden_TBD.to(dtype, copy=True).requires_grad_()) for call in calls]
    losses = [compute(kind, reduction, layer, call) for call in own]
    total = torch.stack([(loss * call.weight.to(dtype)).sum() for loss, call in zip(losses, own, strict=True)]).sum()
    total.backward()
    hidden = torch.stack([call.hidden_TBD.grad for call in own if call.hidden_TBD.grad is not None])
    weight, *others = [parameter.grad.to_dense() for parameter in layer.parameters() if parameter.grad is not None]
    # The gradient of ln Z is held with the bias's: of a single number, errors are luck.
    rest = torch.cat([grad.reshape(-1) for grad in others])
    return [torch.stack(losses).detach(), hidden, weight, rest]


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_those_of_the_weighted_loss(
    name: str, reduction: str, device: torch.device, no_worse: Check
) -> None:
    kind = KINDS[name]
    generator = torch.Generator().manual_seed(5)
    layer = layer_of(D, V, torch.arange(1, V + 1), loss=kind.loss, reduction=reduction, **kind.options)  # type: ignore[arg-type]
    with torch.no_grad():
        layer.weight.normal_(std=0.5, generator=generator)
    calls = []
    for call_weight in CALL_WEIGHTS:
        target_TB = torch.randint(0, 12, (T, B), generator=generator)
        target_TB[0] = torch.tensor([4] + [IGNORED] * (B - 1))  # one position is alone in its step
        mask_TB = torch.rand(T, B, generator=generator) < 0.8
        weight_TB = torch.randn(T, B, generator=generator)
        weight_TB[:, 1] = 0
        weight = weight_TB if reduction == "none" else torch.tensor(call_weight)
        calls.append(Call(torch.randn(T, B, D, generator=generator), target_TB, mask_TB, weight))
    # All on one device: the same seed draws the same words.
    layer, calls = layer.to(device), [Call(*(part.to(device) for part in call)) for call in calls]
    fast = weighted(by_layer, kind, reduction, layer, calls)
    plain = weighted(by_equation, kind, reduction, layer, calls)
    exact = weighted(by_equation, kind, reduction, layer.double(), calls)
    for parts in zip(fast, plain, exact, strict=True):
        no_worse(*parts)
