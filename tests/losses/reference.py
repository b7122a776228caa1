"""Every equation of the paper in float64, one function per equation, written to be read and not to be fast.

The names are the paper's (Oualil & Klakow, 2017): M_θ(w, c) = h·w + c is the score, Z the constant, p_n the noise,
K the number of noise words. Probabilities are formed as they stand there, with exp and division: the losses that train
are tested against these. `losses` are those of a whole batch: noise is drawn as the loss draws it, so that the same
seed gives both the same words.

Legend: T time steps, B streams, N positions, D hidden, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bnce import OutputLayer


def softmax_probability(scores_V: Tensor, word: int) -> Tensor:
    """Eq. (1): p(w | c) = exp M(w, c) / Σ_v exp M(v, c)."""
    exp_V = torch.exp(scores_V.double())
    return exp_V[word] / exp_V.sum()


def unnormalised_probability(score: Tensor, log_z: Tensor | float) -> Tensor:
    """Eq. (2): p(w | c) ≈ exp M(w, c) / Z."""
    return torch.exp(score.double()) / torch.exp(torch.as_tensor(log_z, dtype=torch.float64))


def data_probability(model_probability: Tensor, noise_probability: Tensor, num_noise: int) -> Tensor:
    """Eq. (3): the probability that a word came from the data, p / (p + K · p_n)."""
    return model_probability / (model_probability + num_noise * noise_probability)


def nce_loss(target_probability: Tensor, noise_probabilities: Tensor) -> Tensor:
    """Eqs. (4) and (5) for one position: −ln p(1) of the target − Σ_k ln(1 − p(1)) of the noise words."""
    return -torch.log(target_probability) - torch.log1p(-noise_probabilities).sum()


def softmax_loss(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, target_N: Tensor) -> Tensor:
    """Sum −ln of Eq. (1) over positions."""
    hidden_ND, weight_VD, bias_V = hidden_ND.double(), weight_VD.double(), bias_V.double()
    losses = [
        -torch.log(softmax_probability(weight_VD @ hidden_D + bias_V, int(target)))
        for hidden_D, target in zip(hidden_ND, target_N, strict=True)
    ]
    return torch.stack(losses).sum()


def sampled_nce_loss(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    target_N: Tensor,
    noise_NK: Tensor,
    noise_probs_V: Tensor,
    log_z: Tensor | float,
) -> Tensor:
    """Sum Eq. (5) over positions, each with the noise words of its row; S-NCE gives every row the same ones."""
    hidden_ND, weight_VD, bias_V = hidden_ND.double(), weight_VD.double(), bias_V.double()
    K = noise_NK.shape[1]
    losses = []
    for hidden_D, target, noise_K in zip(hidden_ND, target_N, noise_NK, strict=True):
        words = torch.cat([target.reshape(1), noise_K])
        model = unnormalised_probability(weight_VD[words] @ hidden_D + bias_V[words], log_z)
        data = data_probability(model, noise_probs_V.double()[words], K)
        losses.append(nce_loss(data[0], data[1:]))
    return torch.stack(losses).sum()


def batch_nce_loss(
    hidden_BD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    target_B: Tensor,
    drawn_K: Tensor,
    noise_probs_V: Tensor,
    log_z: Tensor | float,
) -> Tensor:
    """Sum Eq. (5) over one time step: the noise of position i is every other target, and the K drawn words."""
    B, K = len(target_B), len(drawn_K)
    noise = [torch.cat([target_B[:i], target_B[i + 1 :], drawn_K]) for i in range(B)]
    assert all(len(words) == B + K - 1 for words in noise)
    return sampled_nce_loss(hidden_BD, weight_VD, bias_V, target_B, torch.stack(noise), noise_probs_V, log_z)


def batch_nce_gradient(
    hidden_BD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    target_B: Tensor,
    drawn_K: Tensor,
    noise_probs_V: Tensor,
    log_z: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Eqs. (7) to (11) with the extension of Eq. (12), as matrices: G, ΔW (D × M), ΔC (M) and E(L) (B × D)."""
    B, K = len(target_B), len(drawn_K)
    words = torch.cat([target_B, drawn_K])
    L, W, C = hidden_BD.double(), weight_VD.double()[words].t(), bias_V.double()[words]
    N = noise_probs_V.double()[words]
    O = torch.exp(L @ W + C) / math.exp(log_z)  # noqa: E741  Eq. (7)
    Y = O + (B + K - 1) * N  # Eqs. (8) and (12)
    G = O / Y
    for i in range(B):
        G[i, i] = -(B + K - 1) * N[i] / Y[i, i]
    return G, L.t() @ G, G.sum(0), G @ W.t()  # Eqs. (9), (10), (11)


def adaptive_softmax(
    hidden_D: Tensor, weight_RD: Tensor, bias_R: Tensor, tails: Sequence[tuple[Tensor, Tensor, Tensor]]
) -> Tensor:
    """Give the frequent words by the head, and those of each tail by the head's entry times the tail's softmax."""
    head_R = _softmax(weight_RD.double() @ hidden_D + bias_R.double())
    num_frequent = len(head_R) - len(tails)
    parts = [head_R[:num_frequent]]
    for share, (projection_dD, weight_vd, bias_v) in zip(head_R[num_frequent:], tails, strict=True):
        parts.append(share * _softmax(weight_vd.double() @ (projection_dD.double() @ hidden_D) + bias_v.double()))
    return torch.cat(parts)


def _softmax(scores_V: Tensor) -> Tensor:
    exp_V = torch.exp(scores_V)
    return exp_V / exp_V.sum()


def losses(
    layer: OutputLayer,
    hidden_TBD: Tensor,
    target_TB: Tensor,
    valid_TB: Tensor | None = None,
    stream_TB: Tensor | None = None,
) -> Tensor:
    """Compute a layer's loss of every position (T, B) by its equation, from parameters in float64."""
    T, B = target_TB.shape
    valid_TB = torch.ones(T, B, dtype=torch.bool) if valid_TB is None else valid_TB
    stream_TB = torch.arange(B).expand(T, B) if stream_TB is None else stream_TB
    each = _of_positions(layer, hidden_TBD.double(), target_TB, valid_TB, stream_TB)
    zero = hidden_TBD.double().sum() * 0.0
    found = [loss if bool(valid) else zero for loss, valid in zip(each, valid_TB.flatten(), strict=True)]
    return torch.stack(found).view(T, B) if found else hidden_TBD.double().sum(2)


def _of_positions(
    layer: OutputLayer, hidden_TBD: Tensor, target_TB: Tensor, valid_TB: Tensor, stream_TB: Tensor
) -> Iterator[Tensor]:
    record: Any = layer.loss
    (T, B), name, K = target_TB.shape, record.name, layer.num_noise
    weight_VD, bias_V, log_z = layer.weight.double(), layer.bias.double(), layer.log_z.double()
    probs_V = layer.noise.log_probs_V.double().exp()
    shapes = {"nce": (T, B, K), "snce": (T, K), "bnce": (T, K)}
    drawn = torch.zeros(T, 0, dtype=torch.int64)
    if name in shapes and K:
        drawn = (layer.drawn or layer.noise).sample(shapes[name])
    num_draws = None if getattr(record, "replacement", True) else layer.noise.num_draws(K)
    if name == "sampled-softmax":
        drawn, expected_V = layer.noise.sample((K,)), K * probs_V
        if num_draws is not None:
            torch.manual_seed(7)
            drawn = layer.noise.sample((num_draws,)).unique()
            expected_V = 1 - (1 - probs_V) ** num_draws
    for t in range(T):
        for b in range(B):
            hidden_D, target = hidden_TBD[t, b], target_TB[t, b]
            if not valid_TB[t, b]:
                yield hidden_D.sum() * 0.0
                continue
            scores_V = weight_VD @ hidden_D + bias_V
            if name in ("softmax", "self-normalised-softmax"):
                excess = torch.log(torch.exp(scores_V).sum()) - log_z
                penalty = record.penalty * excess**2 if record.penalty else 0.0
                yield -torch.log(softmax_probability(scores_V, int(target))) + penalty
            elif name == "adaptive-softmax":
                exact: Any = layer.structure
                tails = [(tail.projection, tail.weight, tail.bias) for tail in exact.tails]
                tails_double = [tuple(part.double() for part in tail) for tail in tails]
                yield -torch.log(adaptive_softmax(hidden_D, weight_VD, bias_V, tails_double)[exact.place_V[target]])  # type: ignore[arg-type]
            elif name == "sampled-softmax":
                noise_K = drawn if num_draws is None else drawn[drawn != target]
                shares = torch.exp(scores_V) / expected_V
                yield -torch.log(shares[target] / (shares[target] + shares[noise_K].sum()))
            elif name in ("nce", "snce"):
                yield _against(scores_V, target, drawn[t, b] if name == "nce" else drawn[t], probs_V, log_z)
            elif name == "bnce":
                is_other_B = valid_TB[t].clone()
                is_other_B[b] = False
                others = target_TB[t][is_other_B]
                mixed_V = probs_V
                if layer.drawn is not None:
                    mixed_V = len(others) * probs_V + K * layer.drawn.log_probs_V.double().exp()
                    mixed_V = mixed_V / (len(others) + K)
                yield _against(scores_V, target, torch.cat([others, drawn[t]]), mixed_V, log_z)
            else:
                noise = target_TB[valid_TB & (stream_TB != stream_TB[t, b])]
                of_nce = _against(scores_V, target, noise, probs_V, log_z) if record.beta else 0.0
                ratio_V = torch.exp(scores_V) / probs_V
                # The mean of exp(M) / p_n over those of the other streams estimates Z(context).
                log_estimate = torch.log(ratio_V[noise].mean()) if len(noise) else log_z
                rank = -torch.log(ratio_V[target] / (ratio_V[target] + ratio_V[noise].sum()))
                rank = rank + record.penalty * (log_estimate - log_z) ** 2
                yield record.beta * of_nce + (1 - record.beta) * rank if len(noise) else hidden_D.sum() * 0.0


def _against(scores_V: Tensor, target: Tensor, noise_K: Tensor, noise_probs_V: Tensor, log_z: Tensor | float) -> Tensor:
    """Eq. (5) for one position; without noise it has no loss."""
    if not len(noise_K):
        return scores_V.sum() * 0.0
    words = torch.cat([target.reshape(1), noise_K])
    data = data_probability(unnormalised_probability(scores_V[words], log_z), noise_probs_V[words], len(noise_K))
    return nce_loss(data[0], data[1:])
