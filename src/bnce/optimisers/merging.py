"""Add up the gradients of equal rows before a norm or a square is taken of them.

Legend: V rows of the longest table, N gathered rows, D columns.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bnce import kernels, rows


class RowMerge:
    """The plain merge, or its Triton twin with the scratch memory this needs.

    On a GPU both add up equal rows in no fixed order, unless asked to be deterministic: then PyTorch sorts first.
    """

    def __init__(self, tables: Mapping[str, Tensor], *, deterministic: bool) -> None:
        longest = max(tables.values(), key=len)
        self.in_order = deterministic and longest.is_cuda
        self.fast = kernels.choose("rows", longest, deterministic=deterministic)
        if self.fast is not None:
            # One scratch serves all tables: a merge is over before the next begins.
            self.scratch_V = torch.zeros(len(longest), dtype=torch.int32, device=longest.device)

    def __call__(self, words_N: Tensor, values_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Merge equal words, as `rows.merge` does."""
        if self.fast is not None:
            merged: tuple[Tensor, Tensor] = self.fast.merge(words_N, values_ND, self.scratch_V)
            return merged
        if not self.in_order:
            return rows.merge(words_N, values_ND)
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        try:
            return rows.merge(words_N, values_ND)
        finally:
            torch.use_deterministic_algorithms(before)
