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
from typing import Any

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


def count_noise(
    batch: OutputBatch, valid_TB: Tensor | None, num_drawn: int | None = None
) -> tuple[Tensor | None, Tensor | float]:
    """Say which positions are trained on where the batch is the noise (None: all), and ln m of what they see.

    With a number of drawn words, a position sees these and the other targets of its time step; else the targets of all
    other streams, at all time steps. ln m is one number, or such as (T, 1) by step or (B,) by stream.
    """
    (T, B), stream_TB = batch.target_TB.shape, batch.stream_TB
    if valid_TB is None and stream_TB is None and B + (num_drawn or 0) > 1:
        return None, math.log(max(1, (B - 1) * T) if num_drawn is None else B - 1 + num_drawn)
    valid_TB = torch.ones_like(batch.target_TB, dtype=torch.bool) if valid_TB is None else valid_TB
    if num_drawn is not None:
        num_noise = valid_TB.sum(1, keepdim=True) - 1 + num_drawn
    elif stream_TB is None:
        num_noise = valid_TB.sum() - valid_TB.sum(0)
    else:
        last = torch.iinfo(torch.int64).max  # what does not count stands behind all streams
        sorted_N, _ = torch.where(valid_TB, stream_TB.long(), last).flatten().sort()
        first_TB, end_TB = (torch.searchsorted(sorted_N, stream_TB.long(), right=right) for right in (False, True))
        num_noise = valid_TB.sum() - (end_TB - first_TB)
    return valid_TB & (num_noise > 0), num_noise.clamp(min=1).to(batch.score_dtype).log()
