"""Every equation of the paper in float64, one function per equation, written to be read and not to be fast.

The names are the paper's (Oualil & Klakow, 2017): M_θ(w, c) = h·w + c is the score, Z the constant, p_n the noise,
K the number of noise words. Probabilities are formed as they stand there, with exp and division: the losses that train
are tested against these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


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


def self_normalised_softmax_loss(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, target_N: Tensor, log_z: Tensor | float, penalty: float
) -> Tensor:
    """Sum −ln of Eq. (1) over positions, each with penalty · (ln Σ_v exp M(v, c) − ln Z)²."""
    scores_NV = hidden_ND.double() @ weight_VD.double().t() + bias_V.double()
    excess_N = torch.log(torch.exp(scores_NV).sum(1)) - log_z
    return softmax_loss(hidden_ND, weight_VD, bias_V, target_N) + penalty * (excess_N**2).sum()


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


def sampled_softmax_loss(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    target_N: Tensor,
    drawn_K: Tensor,
    expected_V: Tensor,
    remove_hits: bool,
) -> Tensor:
    """Sum −ln of the target's share of Σ exp(M) / Q, over it and the drawn words."""
    weight_VD, bias_V, expected_V = weight_VD.double(), bias_V.double(), expected_V.double()
    losses = []
    for hidden_D, target in zip(hidden_ND.double(), target_N, strict=True):
        noise_K = drawn_K[drawn_K != target] if remove_hits else drawn_K
        words = torch.cat([target.reshape(1), noise_K])
        shares = torch.exp(weight_VD[words] @ hidden_D + bias_V[words]) / expected_V[words]
        losses.append(-torch.log(shares[0] / shares.sum()))
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


def chunk_nce_loss(
    hidden_TBD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    target_TB: Tensor,
    noise_probs_V: Tensor,
    log_z: Tensor | float,
) -> Tensor:
    """Sum Eq. (5) over a chunk where the noise of a position is every target of the other streams, at all steps."""
    T, B = target_TB.shape
    losses = []
    for b in range(B):
        others = torch.cat([target_TB[:, :b], target_TB[:, b + 1 :]], dim=1).reshape(1, -1).expand(T, -1)
        losses.append(
            sampled_nce_loss(hidden_TBD[:, b], weight_VD, bias_V, target_TB[:, b], others, noise_probs_V, log_z)
        )
    return torch.stack(losses).sum()


def chunk_softmax_loss(
    hidden_TBD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    target_TB: Tensor,
    noise_probs_V: Tensor,
    log_z: Tensor | float,
    penalty: float,
) -> Tensor:
    """Sum −ln of the target's share of Σ exp(M) / p_n, over it and the targets of the other streams, and the penalty.

    The mean of exp(M) / p_n over those of the other streams estimates Z(context).
    """
    weight_VD, bias_V, probs_V = weight_VD.double(), bias_V.double(), noise_probs_V.double()
    losses = []
    for b in range(target_TB.shape[1]):
        others = torch.cat([target_TB[:, :b], target_TB[:, b + 1 :]], dim=1).reshape(-1)
        for hidden_D, target in zip(hidden_TBD[:, b].double(), target_TB[:, b], strict=True):
            noise = torch.exp(weight_VD[others] @ hidden_D + bias_V[others]) / probs_V[others]
            own = torch.exp(weight_VD[target] @ hidden_D + bias_V[target]) / probs_V[target]
            log_estimate = torch.log(noise.mean())
            losses.append(-torch.log(own / (own + noise.sum())) + penalty * (log_estimate - log_z) ** 2)
    return torch.stack(losses).sum()


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
