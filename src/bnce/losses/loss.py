"""One batch at the output layer, as every loss sees it, and which of its positions are trained on.

A loss is a function `loss(batch, record) -> Tensor` (T, B): the loss of every position in float32 or wider. It is 0,
with gradients of 0, where a position does not count, and NaN where a target is no word. The caller adds up: the sum is
`loss.sum()`, the mean is `loss.sum() / count`. `record` holds the settings of the loss, such as `record.num_noise`.

Where the batch is the noise, a position that counts is also noise to others, and one that finds no noise is not trained
on. Nothing here makes a GPU's host wait: its shapes do not depend on the data.

Legend: T time steps, B streams, N = T·B positions, R of them that are computed, K drawn noise words, D hidden, V
vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bnce import rows
from bnce.machine.precision import sum_dtype
from bnce.noise import Noise


@dataclass  # not frozen: that would cost a call per field and batch
class OutputBatch:
    """Hidden rows, their targets, and read access to the output layer's parameters and noise."""

    hidden_TBD: Tensor
    target_TB: Tensor  # any number where a position does not count
    valid_TB: Tensor | None  # False where a position does not count; None: all count
    stream_TB: Tensor | None  # which stream a position is of, as any number; None: streams are the columns of a chunk
    weight_VD: Tensor
    bias_V: Tensor
    log_z: Tensor  # ln Z, a number; the constant, or the parameter that is learned
    noise: Noise
    sparse: bool  # whether gradients of the tables have the rows of this batch only
    loss_state: Any = None  # what the layer keeps for its loss, such as noise to draw from

    @property
    def score_dtype(self) -> torch.dtype:
        """The type of scores: float32, or float64 where the output layer is."""
        return sum_dtype(self.weight_VD.dtype)

    def output_rows(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Read the output rows and biases of some words only."""
        return (
            rows.gather(self.weight_VD, words, sparse=self.sparse),
            rows.gather(self.bias_V, words, sparse=self.sparse),
        )

    def words(self) -> Words:
        """Give targets that can be looked up, and which positions count."""
        target_TB, valid_TB = self.target_TB, self.valid_TB
        is_refused = target_TB.device.type == "cpu" or torch.compiler.is_compiling()  # what is no word, before
        if is_refused and valid_TB is None:
            return Words(target_TB, None)
        counts_TB = torch.ones(target_TB.shape, dtype=self.score_dtype, device=target_TB.device)
        if not is_refused:
            counts_TB = counts_TB.masked_fill((target_TB < 0) | (target_TB >= len(self.noise)), torch.nan)
        if valid_TB is not None:
            counts_TB = counts_TB.masked_fill(~valid_TB, 0.0)
        return Words(torch.where(counts_TB == 1, target_TB, 0), counts_TB)


@dataclass
class Words:
    """The targets of a batch, and what becomes of their losses."""

    target_TB: Tensor  # word 0 where a position does not count, or its target is no word
    counts_TB: Tensor | None  # 1 where a position counts, 0 where it does not, NaN where it has no word; None: all 1

    @property
    def valid_TB(self) -> Tensor | None:  # noqa: N802 (a shape)
        """Where a target counts and is a word; None: everywhere."""
        return None if self.counts_TB is None else self.counts_TB == 1

    def that_count(self, valid_TB: Tensor | None) -> Words:
        """Leave out other positions; None: none."""
        if valid_TB is None:
            return self
        return Words(self.target_TB, valid_TB.float() if self.counts_TB is None else self.counts_TB * valid_TB)

    def where_counted(self, loss: Tensor) -> Tensor:
        """Give a loss (T, B) or (N,) as (T, B): 0 where a position does not count, NaN where it has no word."""
        loss_TB = loss.reshape(self.target_TB.shape)
        return loss_TB if self.counts_TB is None else torch.where(self.counts_TB == 1, loss_TB, self.counts_TB)


class Counted(NamedTuple):
    """Which positions are trained on, where the batch is the noise."""

    valid_TB: Tensor | None  # None: all
    log_num_noise: Tensor | float  # ln of the noise words that positions see, such as (T, 1) by step or (B,) by stream
    stream_TB: Tensor | None = None  # numbers of the streams, where the batch has ids for them


def count_steps(valid_TB: Tensor | None, target_TB: Tensor, num_drawn: int, dtype: torch.dtype) -> Counted:
    """Count where a position sees the other targets of its time step, and K drawn words."""
    B = target_TB.shape[1]
    if valid_TB is None and B + num_drawn > 1:
        return Counted(None, math.log(B + num_drawn - 1))
    valid_TB = torch.ones_like(target_TB, dtype=torch.bool) if valid_TB is None else valid_TB
    num_noise_T1 = valid_TB.sum(1, keepdim=True) - 1 + num_drawn
    return Counted(valid_TB & (num_noise_T1 > 0), num_noise_T1.clamp(min=1).to(dtype).log())


def count_streams(valid_TB: Tensor | None, target_TB: Tensor, stream_TB: Tensor | None, dtype: torch.dtype) -> Counted:
    """Count where a position sees the targets of all other streams, at all time steps."""
    T, B = target_TB.shape
    if valid_TB is None and stream_TB is None and B > 1:
        return Counted(None, math.log(max(1, (B - 1) * T)))
    valid_TB = torch.ones_like(target_TB, dtype=torch.bool) if valid_TB is None else valid_TB
    if stream_TB is None:
        num_noise_B = valid_TB.sum() - valid_TB.sum(0)
        return Counted(valid_TB & (num_noise_B > 0), num_noise_B.clamp(min=1).to(dtype).log())
    id_N = stream_TB.reshape(-1).long()
    last = torch.iinfo(torch.int64).max  # what does not count stands behind all streams
    sorted_N, _ = torch.sort(torch.where(valid_TB.reshape(-1), id_N, last))
    first_N = torch.searchsorted(sorted_N, id_N)
    num_own_N = torch.searchsorted(sorted_N, id_N, right=True) - first_N
    num_noise_TB = valid_TB.sum() - num_own_N.reshape(T, B)
    return Counted(valid_TB & (num_noise_TB > 0), num_noise_TB.clamp(min=1).to(dtype).log(), first_N.reshape(T, B))
