"""Raw scores h·w + c of words, some or all of them, and the log of their sum, in bounded memory.

Legend: N positions, D hidden, V rows that are scored, K words per position.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnce.kernels import usable
from bnce.machine.precision import at_least_float32

# The block of logits while normalising, for any V: 2^20 numbers fit into a CPU's cache, 2^22 keep a GPU busy.
BLOCK_POSITIONS = 512
BLOCK_WORDS = {"cpu": 2048, "cuda": 8192}


def score_words(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, words_NK: Tensor) -> Tensor:
    """Compute the raw scores h·w + c of K words for each position, in float32."""
    if words_NK.shape[1] == 1:
        # With one word per position a batched matrix product takes four times as long on a CPU.
        return score_targets(hidden_ND, weight_VD, bias_V, words_NK[:, 0]).unsqueeze(1)
    product_NK = torch.matmul(weight_VD[words_NK], hidden_ND.unsqueeze(2)).squeeze(2)
    return at_least_float32(product_NK) + bias_V[words_NK]


def score_targets(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, word_N: Tensor) -> Tensor:
    """Compute the raw score h·w + c of one word for each position (N,), in float32."""
    if weight_VD.is_cuda and not torch.is_grad_enabled() and usable(weight_VD):
        from bnce.kernels.target_scores import score_targets as fast

        return fast(hidden_ND, weight_VD, bias_V, word_N)
    row_ND = weight_VD.index_select(0, word_N)  # which copies whole rows, where an index copies number by number
    with torch.autocast(hidden_ND.device.type, enabled=False):  # which would make it a bf16 product
        product_N: Tensor = torch.linalg.vecdot(at_least_float32(row_ND), at_least_float32(hidden_ND))
    return product_N + bias_V[word_N]


def score_all(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor) -> Tensor:
    """Compute the raw scores h·w + c of every word (N, V), in float32."""
    return at_least_float32(torch.matmul(hidden_ND, weight_VD.t())) + bias_V


def log_normaliser(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor) -> Tensor:
    """Compute ln Σ_v exp(h·w_v + c_v) for each position (N,), block by block."""
    if weight_VD.is_cuda and not torch.is_grad_enabled() and usable(weight_VD):
        from bnce.kernels.log_normaliser import log_normaliser as fast

        return fast(hidden_ND, weight_VD, bias_V)
    num_words = BLOCK_WORDS.get(hidden_ND.device.type, BLOCK_WORDS["cuda"])
    totals = []
    for rows_ND in hidden_ND.split(BLOCK_POSITIONS):
        total_N: Tensor | None = None
        for begin in range(0, len(weight_VD), num_words):
            block = slice(begin, begin + num_words)
            part_N = torch.logsumexp(score_all(rows_ND, weight_VD[block], bias_V[block]), dim=1)
            total_N = part_N if total_N is None else torch.logaddexp(total_N, part_N)
        assert total_N is not None
        totals.append(total_N)
    return torch.cat(totals) if totals else hidden_ND.new_zeros(0)
