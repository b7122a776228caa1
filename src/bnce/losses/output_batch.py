"""One batch at the output layer, as every loss sees it.

Legend: T time steps, B streams, D last hidden layer, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bnce import rows
from bnce.losses.counted import NO_INDEX, Counted, count_steps, count_streams
from bnce.losses.structure import Structure
from bnce.losses.wrong_targets import WrongTargets
from bnce.machine.precision import sum_dtype
from bnce.noise import Noise, Tries


@dataclass  # not frozen: that would cost a call per field and batch
class OutputBatch:
    """Hidden rows, their targets, and read access to the output layer's parameters and noise."""

    hidden_TBD: Tensor
    target_TB: Tensor  # ids; positions that do not count hold any valid id, or `ignore_index`
    valid_TB: Tensor | None  # False where a position does not count; None: all count
    weight_VD: Tensor
    bias_V: Tensor
    log_z: Tensor  # ln Z, a number; the constant, or the parameter that is learned
    noise: Noise
    num_noise: int  # K
    sparse: bool  # whether gathered rows get sparse gradients
    drawn: Noise | None = None  # where the K words come from, if not from the noise of the batch
    counted: Counted | None = None  # the positions that count, where somebody has counted them
    stream_TB: Tensor | None = None  # which stream a position is of; None: streams are the columns of a chunk
    wrong: WrongTargets | None = None  # where kernels say what is wrong with targets
    ignore_index: int = NO_INDEX  # the target of further positions that do not count
    penalty: float = 0.0  # λ of the losses that penalise: on how far ln Z(context), or its estimate, is from ln Z
    tries: Tries | None = None  # how different words are drawn; None: with replacement
    max_distinct_targets: int | None = None  # the most different targets a chunk of this text has, where that is known
    structure: Structure | None = None  # of an exactly normalised layer, whose weight and bias have rows of their own

    @property
    def score_dtype(self) -> torch.dtype:
        """The type of scores: float32, or float64 where the output layer is."""
        return sum_dtype(self.weight_VD.dtype)

    @property
    def has_holes(self) -> bool:
        """Whether there may be positions that do not count."""
        return self.valid_TB is not None or self.ignore_index != NO_INDEX

    def flat(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Give hidden rows (N, D), targets (N,), and which of them count; None: all do."""
        valid_N = None if self.valid_TB is None else self.valid_TB.reshape(-1)
        return self.hidden_TBD.reshape(-1, self.hidden_TBD.shape[2]), self.target_TB.reshape(-1), valid_N

    def where_counted(self, loss: Tensor) -> Tensor:
        """Give the loss of every position (T, B), 0 where one does not count, of a loss (T, B) or (N,)."""
        loss_TB = loss.reshape(self.target_TB.shape)
        return loss_TB if self.valid_TB is None else torch.where(self.valid_TB, loss_TB, 0.0)

    def output_rows(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Read the output rows and biases of some words only."""
        return (
            rows.gather(self.weight_VD, words, sparse=self.sparse),
            rows.gather(self.bias_V, words, sparse=self.sparse),
        )

    def wrong_room(self) -> Tensor | None:
        """Give where kernels say what is wrong with targets; None: nobody asks."""
        return None if self.wrong is None else self.wrong.room(self.target_TB.device)

    def count_steps(self) -> Counted | None:
        """Say which positions count where noise comes from a position's time step; None: all do."""
        if self.counted is not None or not self.has_holes:
            return self.counted
        return count_steps(self.target_TB, self.valid_TB, self.ignore_index, self.num_noise, self.score_dtype)

    def count_streams(self) -> Counted | None:
        """Say which positions count where noise comes from other streams; None: all do, in streams side by side."""
        if self.counted is not None or (not self.has_holes and self.stream_TB is None):
            return self.counted
        return count_streams(self.target_TB, self.valid_TB, self.ignore_index, self.stream_TB, self.score_dtype)
