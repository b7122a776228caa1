"""What a run's engine does beside the network itself: the likeliest words, block by block.

Legend: B rows, D hidden, K words, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch

from bnce import OutputLayer, noise
from bnce.scoring.torch_engine import top_words


@pytest.mark.parametrize("block_numbers", [3 * 1024, 2**22])
@pytest.mark.parametrize("num_words", [1, 5, 2999, 3000, 10**6])
def test_the_likeliest_words_are_those_of_all_scores_at_once(
    monkeypatch: pytest.MonkeyPatch, block_numbers: int, num_words: int
) -> None:
    monkeypatch.setattr("bnce.scoring.engine.BLOCK_NUMBERS", block_numbers)
    torch.manual_seed(1)
    layer = OutputLayer(6, 3000, noise.unigram(torch.arange(3000, 0, -1)))
    hidden_BD = 20 * torch.randn(3, 6)
    score_BV = hidden_BD.double() @ layer.weight.detach().double().t() + layer.bias.detach().double()
    expected_BK, expected_word_BK = torch.topk(score_BV, min(num_words, 3000), dim=1)
    score_BK, word_BK, log_normaliser_B = top_words(layer, hidden_BD, num_words)
    torch.testing.assert_close(score_BK.double(), expected_BK, atol=1e-4, rtol=0)
    torch.testing.assert_close(log_normaliser_B.double(), torch.logsumexp(score_BV, 1), atol=1e-4, rtol=0)
    # Ties of float32 may fall either way: the words found must have the scores told.
    torch.testing.assert_close(score_BV.gather(1, word_BK), expected_BK, atol=1e-4, rtol=0)
    assert torch.equal(word_BK[:, 0], expected_word_BK[:, 0])
    assert all(len(set(row)) == len(row) for row in word_BK.tolist())


def test_a_word_left_out_keeps_its_part_in_the_sum() -> None:
    layer = OutputLayer(4, 2500, noise.unigram(torch.arange(2500, 0, -1)))
    hidden_BD = torch.randn(2, 4)
    _, with_it, log_z = top_words(layer, hidden_BD, 2500)
    _, without, same_log_z = top_words(layer, hidden_BD, 2499, without=7)
    assert 7 in with_it[0]
    assert 7 not in without
    assert torch.equal(log_z, same_log_z)
