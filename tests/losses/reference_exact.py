"""Exactly normalised layers in float64: the probabilities of all words for one position.

Written to be read and not to be fast; the losses that train are tested against these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def loss(hidden_ND: Tensor, place_N: Tensor, probabilities: Callable[[Tensor], Tensor]) -> Tensor:
    """Sum −ln p over positions, whose targets are at these places among the probabilities."""
    pairs = zip(hidden_ND.double(), place_N.tolist(), strict=True)
    return torch.stack([-torch.log(probabilities(hidden_D)[place]) for hidden_D, place in pairs]).sum()


def softmax(scores_V: Tensor) -> Tensor:
    """Give exp s / Σ exp s."""
    exp_V = torch.exp(scores_V)
    return exp_V / exp_V.sum()


def adaptive_softmax(
    hidden_D: Tensor, weight_RD: Tensor, bias_R: Tensor, tails: Sequence[tuple[Tensor, Tensor, Tensor]]
) -> Tensor:
    """Give the frequent words by the head, and those of each tail by the head's entry times the tail's softmax."""
    head_R = softmax(weight_RD.double() @ hidden_D + bias_R.double())
    num_frequent = len(head_R) - len(tails)
    parts = [head_R[:num_frequent]]
    for share, (projection_dD, weight_vd, bias_v) in zip(head_R[num_frequent:], tails, strict=True):
        parts.append(share * softmax(weight_vd.double() @ (projection_dD.double() @ hidden_D) + bias_v.double()))
    return torch.cat(parts)


def hierarchical_softmax(
    hidden_D: Tensor, weight_RD: Tensor, bias_R: Tensor, choice_V: Sequence[int], choice_R: Sequence[int]
) -> Tensor:
    """Give every word, in the order of ids, the product of its choices, 2·node + bit each, up to the root.

    A choice has the probability σ(s) where its bit is 1 and 1 − σ(s) where it is 0.
    """
    yes_R = 1 / (1 + torch.exp(-(weight_RD.double() @ hidden_D + bias_R.double())))
    words = []
    for last in choice_V:
        probability, choice = torch.ones((), dtype=torch.float64), last
        while choice >= 0:
            node, bit = divmod(choice, 2)
            probability = probability * (yes_R[node] if bit else 1 - yes_R[node])
            choice = choice_R[node]
        words.append(probability)
    return torch.stack(words)


def class_softmax(
    hidden_D: Tensor, weight_CD: Tensor, bias_C: Tensor, words_VD: Tensor, bias_V: Tensor, class_size: int
) -> Tensor:
    """Give every word, in the order of frequency, the probability of its class times its own among the class's."""
    class_C = softmax(weight_CD.double() @ hidden_D + bias_C.double())
    parts = []
    for number, share in enumerate(class_C):
        of_class = slice(number * class_size, (number + 1) * class_size)
        parts.append(share * softmax(words_VD[of_class].double() @ hidden_D + bias_V[of_class].double()))
    return torch.cat(parts)
