"""Chunks of parallel streams: the text cut into B long pieces that are read side by side, T words at a time.

Streams make the targets of one time step a fair sample of the unigram, which B-NCE relies on: sentences aligned at
their start, or sorted by length, would not be.

Legend: T time steps, B streams, C context words, L = C + T.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnce.corpus.store import Corpus, count_words
from bnce.corpus.vocabulary import END
from bnce.errors import UserError
from bnce.settings import TrainingConfig

SORTED_AT_ONCE = 2**24  # words
BITS = 32  # of the number that a place in a text is turned into


@dataclass(frozen=True)
class Chunk:
    """T steps of B streams: row t of `target_TB` follows row C + t of `input_LB`."""

    input_LB: Tensor
    target_TB: Tensor
    reset_LB: Tensor | None = None  # input words before which a stream's text begins anew

    def divide(self, num_groups: int) -> list[Chunk]:
        """Give each of several groups of streams side by side its own chunk."""
        parts = [part.chunk(num_groups, 1) for part in (self.input_LB, self.target_TB)]
        resets = [None] * num_groups if self.reset_LB is None else self.reset_LB.chunk(num_groups, 1)
        return [Chunk(*group) for group in zip(*parts, resets, strict=True)]


class Streams:
    """A text as B parallel streams, read in chunks of T steps; the last chunk may be shorter."""

    def __init__(
        self, ids: np.ndarray, batch_size: int, num_steps: int, num_context: int = 0, columns: slice = slice(None)
    ) -> None:
        """`columns` are those of the B streams that chunks have: a process may read its share of them."""
        if len(ids) < batch_size * num_steps:
            raise UserError(
                f"The text has {len(ids)} token{'s' * (len(ids) != 1)}, but one batch of {batch_size} streams and "
                f"{num_steps} steps needs {batch_size * num_steps}: use more text, or a smaller training.batch_size or "
                "training.num_steps."
            )
        self.ids, self.batch_size, self.num_steps, self.num_context = ids, batch_size, num_steps, num_context
        self.stream_length, self.columns = len(ids) // batch_size, columns

    def __len__(self) -> int:
        return -(-self.stream_length // self.num_steps)

    @property
    def num_tokens(self) -> int:
        """Count the targets of one epoch; up to B − 1 tokens at the end of the text are left out."""
        return self.stream_length * self.batch_size

    def chunk(self, index: int) -> Chunk:
        """Read chunk `index`; before the first word of the text stands `</s>`."""
        begin = index * self.num_steps
        end = min(begin + self.num_steps, self.stream_length)
        start_B = (np.arange(self.batch_size) * self.stream_length)[self.columns]
        position_LB = np.arange(begin - 1 - self.num_context, end)[:, None] + start_B
        # One read serves both: the targets are the inputs one step on.
        word_LB = self.ids[np.maximum(position_LB, 0)].astype(np.int64)
        word_LB[position_LB < 0] = END
        words = torch.from_numpy(word_LB)
        return Chunk(input_LB=words[:-1], target_TB=words[1 + self.num_context :])

    def count_targets(self, vocab_size: int) -> NDArray[np.int64]:
        """Count how often each word is a target in one epoch: the noise distribution counts exactly these."""
        return count_words(self.ids[: self.num_tokens], vocab_size)

    def max_distinct_targets(self, num_groups: int = 1) -> int | None:
        """Count the different targets of the chunk that has most of them, where that is quickly done.

        Of several groups of streams side by side each is counted for itself.
        """
        return None

    def max_places(self, places_CV: NDArray[Any], num_groups: int = 1) -> list[int]:
        """Add up numbers that words have, over the targets of the chunk where the sum is largest; C such sums.

        Of several groups of streams side by side each is counted for itself.
        """
        columns = range(self.batch_size)[self.columns]
        per_group = len(columns) // num_groups
        begins = np.arange(0, self.stream_length, self.num_steps)
        most_C = np.zeros(len(places_CV), dtype=np.int64)
        for group in range(num_groups):
            sum_Cn = np.zeros((len(most_C), len(begins)), dtype=np.int64)
            for column in columns[group * per_group : (group + 1) * per_group]:
                begin = column * self.stream_length
                words_n = self.ids[begin : begin + self.stream_length]
                for sum_n, places_V in zip(sum_Cn, places_CV, strict=True):
                    sum_n += np.add.reduceat(places_V[words_n], begins, dtype=np.int64)
            np.maximum(most_C, sum_Cn.max(axis=1), out=most_C)
        return [int(most) for most in most_C]

    def chunks(self) -> Iterator[Chunk]:
        """Read the chunks of an epoch."""
        return map(self.chunk, range(len(self)))


class DeviceStreams(Streams):
    """The same streams with the whole text on a device, time by streams, so that a chunk is a slice."""

    def __init__(
        self,
        ids: np.ndarray,
        batch_size: int,
        num_steps: int,
        num_context: int,
        device: torch.device,
        columns: slice = slice(None),
    ) -> None:
        super().__init__(ids, batch_size, num_steps, num_context, columns)
        streams_Bn = ids[: self.num_tokens].reshape(batch_size, self.stream_length)[columns]
        text_nB = np.ascontiguousarray(streams_Bn.T, dtype=np.int32)
        before_CB = super().chunk(0).input_LB[: 1 + num_context].to(torch.int32)
        self.words_nB = torch.cat([before_CB, torch.from_numpy(text_nB)]).to(device)

    def chunk(self, index: int) -> Chunk:
        """Slice chunk `index`."""
        begin = index * self.num_steps
        end = min(begin + self.num_steps, self.stream_length)
        words = self.words_nB[begin : end + 1 + self.num_context]
        return Chunk(input_LB=words[:-1], target_TB=words[1 + self.num_context :])

    def max_distinct_targets(self, num_groups: int = 1) -> int:
        """Count the different targets of the chunk that has most of them, by sorting many chunks at a time."""
        return max(self._most_of(target_nB) for target_nB in self.words_nB[1 + self.num_context :].chunk(num_groups, 1))

    def _most_of(self, target_nB: Tensor) -> int:
        chunk_size = self.num_steps * target_nB.shape[1]
        num_whole = self.stream_length // self.num_steps
        whole_CN = target_nB[: num_whole * self.num_steps].reshape(num_whole, chunk_size)
        counts = [_distinct(part_CN) for part_CN in whole_CN.split(max(1, SORTED_AT_ONCE // chunk_size))]
        return max([*counts, _distinct(target_nB[num_whole * self.num_steps :].reshape(1, -1))])


class PrefetchedStreams(Streams):
    """The same streams for a text that is too large for a device: the next chunk is read while this one is used."""

    _ahead: tuple[int, Future[Chunk]] | None = None

    @functools.cached_property
    def _reader(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max_workers=1, thread_name_prefix="chunks")

    def chunk(self, index: int) -> Chunk:
        """Give chunk `index`, and begin to read the one after it."""
        if self._ahead is None or self._ahead[0] != index:
            self._ahead = (index, self._reader.submit(self._read, index))
        chunk = self._ahead[1].result()
        following = (index + 1) % len(self)
        self._ahead = (following, self._reader.submit(self._read, following))
        return chunk

    def _read(self, index: int) -> Chunk:
        chunk = super().chunk(index)
        if not torch.cuda.is_available():
            return chunk
        # From pinned memory a copy to the device goes on beside the computation.
        return Chunk(chunk.input_LB.pin_memory(), chunk.target_TB.pin_memory())


def _distinct(word_CN: Tensor) -> int:
    """Count the different words of each row, and give the highest count."""
    sorted_CN = word_CN.sort(dim=1).values
    changes_C = (sorted_CN[:, 1:] != sorted_CN[:, :-1]).sum(1)
    return int(changes_C.max()) + 1 if word_CN.numel() else 0


def training_streams(training: TrainingConfig, corpus: Corpus) -> Streams:
    """Read the training text, or the part of it that the settings ask for, as the streams it is trained in."""
    ids = corpus.split("train")[: training.max_train_tokens or None]
    return Streams(ids, training.groups * training.batch_size, training.num_steps)


def open_streams(
    ids: np.ndarray,
    batch_size: int,
    num_steps: int,
    num_context: int,
    device: torch.device,
    columns: slice = slice(None),
) -> Streams:
    """Put the text on a GPU if it takes at most a quarter of what is free there; else it is read from its file."""
    if device.type == "cuda":
        if 4 * len(ids) <= torch.cuda.mem_get_info(device)[0] // 4:
            return DeviceStreams(ids, batch_size, num_steps, num_context, device, columns)
        return PrefetchedStreams(ids, batch_size, num_steps, num_context, columns)
    return Streams(ids, batch_size, num_steps, num_context, columns)


class Resets:
    """Chooses sentence ends at which training begins a text anew, as the scoring of a sentence does.

    Each is chosen with probability `rate`, by the seed, the epoch and the place in the text, and nothing else: not by
    the machine, by how streams are shared among processes, or by where a run was interrupted.
    """

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
        return replace(chunk, reset_LB=reset_LB)


def scatter(place: Tensor, key: int) -> Tensor:
    """Turn places into numbers of 32 bits that look drawn by chance: C. Wellons' two-round hash, [15 12 15]."""
    number: Tensor = (place & (2**BITS - 1)) ^ key
    # Both factors are below 2**31, so that no product exceeds 63 bits.
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
        number = ((number ^ (number >> shift)) * factor) & (2**BITS - 1)
    return number ^ (number >> 15)
