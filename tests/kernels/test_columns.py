"""The columns of a block, against the same in plain operations.

Legend: P problems, M columns, T time steps, B streams, K drawn words, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bnce.kernels.columns import gather, step_columns

V, D = 11, 6
Check = Callable[[Tensor, Tensor, Tensor], None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("P", "M", "num_columns"), [(1, 5, 5), (3, 5, 8), (1, 9, 16)])
def test_rows_and_offsets(P: int, M: int, num_columns: int, dtype: torch.dtype, device: torch.device) -> None:
    word_PM, shift_PM = torch.randint(V, (P, M), device=device), torch.randn(P, M, device=device)
    weight_VD, bias_V = torch.randn(V, D, device=device), torch.randn(V, device=device)
    log_z = torch.tensor(9.0, device=device)
    for shift, constant in ((shift_PM, log_z), (None, None)):
        offset_PW, row_PWE = gather(
            word_PM, shift, weight_VD, bias_V, constant, dtype, width=8, num_columns=num_columns
        )
        expected = bias_V[word_PM] - (0 if constant is None else constant) + (0 if shift is None else shift)
        torch.testing.assert_close(offset_PW[:, :M], expected)
        torch.testing.assert_close(row_PWE[:, :M, :D].float(), weight_VD[word_PM], rtol=2**-7, atol=0)
        assert offset_PW[:, M:].eq(-torch.inf).all()
        assert not row_PWE[:, M:].any()
        assert not row_PWE[..., D:].any()


@pytest.mark.parametrize(("K", "is_mixed"), [(0, False), (3, False), (3, True)])
@pytest.mark.parametrize("is_masked", [False, True])
def test_columns_of_time_steps(K: int, is_mixed: bool, is_masked: bool, device: torch.device, no_worse: Check) -> None:
    T, B = 4, 300
    target_TB, drawn_TK = torch.randint(V, (T, B), device=device), torch.randint(V, (T, K), device=device)
    target_TB[1, 2] = V
    valid_TB = torch.rand(T, B, device=device) < 0.7
    valid_TB[0], valid_TB[2] = False, False
    valid_TB[0, 5] = valid_TB[1, 2] = True  # alone in its step; one that is no word
    log_u, log_q = (torch.randn(V, device=device).log_softmax(0) for _ in range(2))
    word_TM, shift_TM, counts_TB = step_columns(
        target_TB, valid_TB if is_masked else None, drawn_TK if K else None, log_u, log_q if is_mixed else None
    )
    valid_TB = valid_TB if is_masked else torch.ones_like(valid_TB)
    num_noise_T1 = valid_TB.sum(1, keepdim=True) - 1 + K
    expected_TB = (valid_TB & (num_noise_T1 > 0)).float()
    expected_TB[1, 2] = torch.nan
    torch.testing.assert_close(counts_TB, expected_TB, equal_nan=True, rtol=0, atol=0)
    is_there_TM = torch.cat([counts_TB == 1, torch.ones_like(drawn_TK, dtype=torch.bool)], 1)
    assert torch.equal(word_TM, torch.where(is_there_TM, torch.cat([target_TB, drawn_TK], 1), 0))
    assert torch.equal(shift_TM == -torch.inf, ~is_there_TM)
    expected = []
    for dtype in (torch.float32, torch.float64):
        share_TM = (num_noise_T1.clamp(min=1) - (K if is_mixed else 0)).clamp(min=0) * log_u.to(dtype).exp()[word_TM]
        if is_mixed:
            share_TM = share_TM + K * log_q.to(dtype).exp()[word_TM]
        expected.append(-share_TM.log()[is_there_TM])
    no_worse(shift_TM[is_there_TM], *expected)
