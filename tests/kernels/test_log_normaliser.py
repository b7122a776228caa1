"""The log of the sum over the vocabulary: the kernel is no worse than the plain function."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

Check = Callable[[Tensor, Tensor, Tensor], None]


@pytest.mark.parametrize("num_words", [1, 50, 5000])
def test_log_sum_exp_adds_the_bias(num_words: int, device: torch.device, no_worse: Check) -> None:
    from bnce.kernels.log_normaliser import log_sum_exp

    logit, bias = 30 * torch.randn(7, num_words, device=device), torch.randn(num_words, device=device)
    plain, exact = ((logit.to(dtype) + bias.to(dtype)).logsumexp(1) for dtype in (torch.float32, torch.float64))
    no_worse(log_sum_exp(logit, bias), plain, exact)
