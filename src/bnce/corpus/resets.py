"""Sentence ends at which training begins a text anew, as the scoring of a sentence does.

Whether it does is left to chance, which depends on the seed, the epoch and the place in the text, and on nothing else:
neither on the machine, nor on how streams are shared among processes, nor on where a run was interrupted.

Legend: T time steps, B streams, C context words, L = C + T.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from bnce.corpus.streams import Chunk, Streams
from bnce.corpus.vocabulary import END

BITS = 32  # of a place's number


class Resets:
    """Chooses resets among the sentence ends of a text's chunks, each with probability `rate`."""

    def __init__(self, streams: Streams, rate: float, seed: int) -> None:
        self.streams, self.rate, self.seed = streams, rate, seed
        self._place_LB: Tensor | None = None  # of the first chunk's words

    def choose(self, chunk: Chunk, index: int, epoch: int) -> Chunk:
        """Add the resets of chunk `index` of an epoch: they are before words that are `</s>`."""
        num_rows, device = len(chunk.input_LB), chunk.input_LB.device
        if self._place_LB is None or self._place_LB.device != device:
            streams = self.streams
            start_B = (np.arange(streams.batch_size) * streams.stream_length)[streams.columns]
            place_LB = np.arange(-1 - streams.num_context, streams.num_steps - 1)[:, None] + start_B
            self._place_LB = torch.from_numpy(place_LB).to(device)
        key = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0])
        number_LB = scatter(self._place_LB[:num_rows] + index * self.streams.num_steps, key)
        # Compared as whole numbers, which are the same everywhere.
        reset_LB = (number_LB < round(self.rate * 2**BITS)) & (chunk.input_LB == END)
        if chunk.input_LB.is_pinned():
            reset_LB = reset_LB.pin_memory()  # so that it goes to the GPU as the words do
        return dataclasses.replace(chunk, reset_LB=reset_LB)


def scatter(place: Tensor, key: int) -> Tensor:
    """Turn places into numbers of 32 bits that look drawn by chance: C. Wellons' two-round hash, [15 12 15]."""
    number: Tensor = (place & (2**BITS - 1)) ^ key
    # Both factors are below 2**31, so that no product exceeds 63 bits.
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
        number = ((number ^ (number >> shift)) * factor) & (2**BITS - 1)
    return number ^ (number >> 15)
