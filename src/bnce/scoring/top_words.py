"""The likeliest words after a history, exact, in one pass over the output layer and bounded memory.

Legend: B histories, D hidden, K words wanted, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bnce.output_layer import OutputLayer

# One block of scores: 2^22 numbers are 16 MB.
BLOCK_NUMBERS = 2**22


@torch.inference_mode()
def top_words(
    output: OutputLayer, hidden_BD: Tensor, num_words: int, without: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the words with the highest raw scores: scores and words (B, K), the highest first, and ln Z(context) (B,).

    `without` is a word that must not be among them; it has its part in Z all the same.
    """
    num_rows = len(hidden_BD)
    best_BK = hidden_BD.new_zeros(num_rows, 0, dtype=torch.float32)
    word_BK = torch.zeros(num_rows, 0, dtype=torch.int64, device=hidden_BD.device)
    log_normaliser_B = hidden_BD.new_full((num_rows,), -torch.inf, dtype=torch.float32)
    block_words = max(1024, BLOCK_NUMBERS // max(1, num_rows))
    for begin in range(0, output.vocab_size, block_words):
        end = min(begin + block_words, output.vocab_size)
        score_BV = output.scores_between(hidden_BD, begin, end)
        log_normaliser_B = torch.logaddexp(log_normaliser_B, torch.logsumexp(score_BV, dim=1))
        if without is not None and begin <= without < end:
            score_BV[:, without - begin] = -torch.inf
        found_BK, place_BK = torch.topk(score_BV, min(num_words, end - begin), dim=1)
        both_BK = torch.cat([best_BK, found_BK], dim=1)
        both_word_BK = torch.cat([word_BK, place_BK + begin], dim=1)
        best_BK, order_BK = torch.topk(both_BK, min(num_words, both_BK.shape[1]), dim=1)
        word_BK = both_word_BK.gather(1, order_BK)
    return best_BK, word_BK, log_normaliser_B
