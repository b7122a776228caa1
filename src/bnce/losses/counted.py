"""Which positions of a chunk are trained on, and how many noise words each of them sees.

A position counts if its target is not `ignore_index` and its mask is true. Where the batch is the noise, a position
that counts is also noise to others; and one that finds no noise is not trained on. Nothing here makes a GPU's host
wait: shapes do not depend on the data. `dtype` is the type of scores, which ln of the noise words is taken from.

Legend: T time steps, B streams, K drawn noise words.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NO_INDEX = -(2**62)  # an `ignore_index` that no target has


class Counted(NamedTuple):
    """The positions of a chunk."""

    target_TB: Tensor  # word 0 where a position is not trained on
    stream_TB: Tensor  # the stream of a position that is trained on, as int32; −1: it is not
    log_num_noise: Tensor  # ln of the noise words that positions see, such as (T, 1) by step or (B,) by stream
    num_positions: Tensor  # that are trained on

    @property
    def is_trained(self) -> Tensor:
        """Whether a position is trained on (T, B)."""
        return self.stream_TB >= 0


def count_steps(
    target_TB: Tensor,
    mask_TB: Tensor | None,
    ignore_index: int,
    num_drawn: int,
    dtype: torch.dtype = torch.float32,
) -> Counted:
    """Count where a position sees the other targets of its time step, and K drawn words."""
    valid_TB = _valid(target_TB, mask_TB, ignore_index)
    return _counted(target_TB, valid_TB, valid_TB.sum(1, keepdim=True) - 1 + num_drawn, dtype)


def count_streams(
    target_TB: Tensor,
    mask_TB: Tensor | None,
    ignore_index: int,
    id_TB: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Counted:
    """Count where a position sees the targets of all other streams.

    Any numbers `id_TB` say which stream a position is of; without them, streams are the columns.
    """
    valid_TB = _valid(target_TB, mask_TB, ignore_index)
    if id_TB is None:
        return _counted(target_TB, valid_TB, valid_TB.sum() - valid_TB.sum(0), dtype)
    id_N = id_TB.reshape(-1).long()
    last = torch.iinfo(torch.int64).max  # what does not count stands behind all streams
    sorted_N, _ = torch.sort(torch.where(valid_TB.reshape(-1), id_N, last))
    first_N = torch.searchsorted(sorted_N, id_N)
    num_own_N = torch.searchsorted(sorted_N, id_N, right=True) - first_N
    num_noise_TB = valid_TB.sum() - num_own_N.reshape(target_TB.shape)
    return _counted(target_TB, valid_TB, num_noise_TB, dtype, first_N.int().reshape(target_TB.shape))


def count_positions(target_TB: Tensor, mask_TB: Tensor | None, ignore_index: int) -> Counted:
    """Count where noise does not come from the batch."""
    valid_TB = _valid(target_TB, mask_TB, ignore_index)
    return _counted(target_TB, valid_TB, torch.ones((), dtype=torch.float32, device=target_TB.device), torch.float32)


def _valid(target_TB: Tensor, mask_TB: Tensor | None, ignore_index: int) -> Tensor:
    valid_TB = target_TB != ignore_index
    return valid_TB if mask_TB is None else valid_TB & mask_TB.bool()


def _counted(
    target_TB: Tensor, valid_TB: Tensor, num_noise: Tensor, dtype: torch.dtype, stream: Tensor | None = None
) -> Counted:
    valid_TB = valid_TB & (num_noise > 0)
    if stream is None:
        stream = torch.arange(target_TB.shape[1], dtype=torch.int32, device=target_TB.device)
    return Counted(
        torch.where(valid_TB, target_TB, 0),
        torch.where(valid_TB, stream, -1),
        num_noise.clamp(min=1).to(dtype).log(),
        valid_TB.sum(),
    )
