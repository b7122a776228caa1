"""One batch at the output layer, as every loss sees it.

Legend: T time steps, B streams, D last hidden layer, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bnce import rows
from bnce.noise import Noise


@dataclass(frozen=True)
class OutputBatch:
    """Hidden rows, their targets, and read access to the output layer's parameters and noise."""

    hidden_TBD: Tensor
    target_TB: Tensor  # ids; positions that do not count hold any valid id
    valid_TB: Tensor | None  # False where a position does not count; None: all count
    weight_VD: Tensor
    bias_V: Tensor
    log_z: Tensor  # ln Z, a number; the constant, or the parameter that is learned
    noise: Noise
    num_noise: int  # K
    sparse: bool  # whether gathered rows get sparse gradients
    stream_TB: Tensor | None = None  # which stream a position is of; None: streams are the columns of a chunk
    softmax: str = "fused"  # in which form the softmax is computed, where that is the loss
    max_distinct_targets: int | None = None  # the most different targets a chunk of this text has, where that is known

    def output_rows(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Read the output rows and biases of some words only."""
        return (
            rows.gather(self.weight_VD, words, sparse=self.sparse),
            rows.gather(self.bias_V, words, sparse=self.sparse),
        )

    def log_num_noise(self, drawn: int, *, from_batch: bool) -> Tensor | float:
        """Compute ln M: drawn noise words plus, where the batch is noise, the other valid positions of each step.

        A number, or (T, 1) where the count differs by step; a step without any noise is counted as one, and its
        loss is left out.
        """
        if not from_batch:
            return math.log(drawn)
        if self.valid_TB is None:
            return math.log(self.target_TB.shape[1] - 1 + drawn)
        others_T1 = self.valid_TB.sum(1, keepdim=True) - 1 + drawn
        return others_T1.clamp(min=1).to(torch.float32).log()
