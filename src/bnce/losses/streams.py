"""Which stream a position of a chunk belongs to, and how many noise words it sees.

A position's noise is the targets of all other streams, over all time steps. Where every position counts and streams are
the columns of a chunk, that is (B − 1)·T words for each. With masks, or with stream ids of the caller's, it differs by
stream. Shapes do not depend on the data, so a GPU's host never waits.

Legend: T time steps, B streams, N = T·B positions in the order t·B + b.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Streams:
    """The streams of N positions."""

    stream_N: Tensor  # equal numbers for positions of one stream; −1 where a position is not trained on
    log_num_noise_N: Tensor  # ln of the noise words that a position sees


def find_streams(shape: tuple[int, int], valid_TB: Tensor | None, stream_TB: Tensor | None, like: Tensor) -> Streams:
    """Say for every position which stream it is of; without ids, the columns are the streams."""
    T, B = shape
    place_N = torch.arange(T * B, device=like.device)
    id_N = place_N % B if stream_TB is None else stream_TB.reshape(-1).long()
    valid_N = torch.ones_like(place_N, dtype=torch.bool) if valid_TB is None else valid_TB.reshape(-1)
    last = torch.iinfo(torch.int64).max  # what does not count stands behind all streams
    sorted_N, _ = torch.sort(torch.where(valid_N, id_N, last))
    first_N = torch.searchsorted(sorted_N, id_N)
    size_N = torch.searchsorted(sorted_N, id_N, right=True) - first_N
    num_noise_N = valid_N.sum() - size_N
    # Where all that counts is of one stream, there is no noise, and nothing is trained on.
    is_trained_N = valid_N & (num_noise_N > 0)
    return Streams(
        stream_N=torch.where(is_trained_N, first_N, -1).int(),
        log_num_noise_N=num_noise_N.clamp(min=1).to(torch.float32).log(),
    )
