"""Scores of one word per position: the kernel is no worse than the plain function."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bnce.kernels import target_scores
from bnce.losses.scores import score_targets


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("N", "D"), [(0, 4), (1, 1), (31, 7), (70, 200), (33, 129)])
def test_is_no_worse(
    device: torch.device, no_worse: Callable[[Tensor, Tensor, Tensor], None], N: int, D: int, dtype: torch.dtype
) -> None:
    V = 50
    wide_ND = torch.randn(N, D + 5, device=device).to(dtype)
    hidden_ND = wide_ND[:, :D]  # as a body leaves it, with padding on the right
    weight_VD, bias_V = torch.randn(V, D, device=device), torch.randn(V, device=device)
    word_N = torch.randint(V, (N, 2), device=device)[:, 0]
    exact = score_targets(hidden_ND.double(), weight_VD.double(), bias_V.double(), word_N)
    plain = score_targets(hidden_ND, weight_VD, bias_V, word_N)
    found = target_scores.score_targets(hidden_ND, weight_VD, bias_V, word_N)
    assert found.dtype == plain.dtype == torch.float32
    no_worse(found, plain, exact)
