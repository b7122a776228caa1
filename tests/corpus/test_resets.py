"""Resets: at sentence ends alone, as often as asked for, and the same however a text is read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_corpus import END
from torch import Tensor

from bnce.corpus.streams import DeviceStreams, Resets, Streams, scatter

NUM_STREAMS, NUM_WORDS = 6, 6 * 100


def text() -> np.ndarray:
    """Write sentences of one to six words."""
    generator = np.random.default_rng(5)
    return np.where(generator.random(NUM_WORDS) < 0.3, END, generator.integers(1, 50, NUM_WORDS))


def read(streams: Streams, *, rate: float = 0.5, seed: int = 1, epoch: int = 0) -> Tensor:
    """Put the resets of all chunks of an epoch together, time by streams."""
    resets, parts = Resets(streams, rate, seed), []
    for index in range(len(streams)):
        chunk = resets.choose(streams.chunk(index), index, epoch)
        assert chunk.reset_LB is not None
        assert not (chunk.reset_LB & (chunk.input_LB != END)).any(), "only where a sentence has ended"
        parts.append(chunk.reset_LB[streams.num_context :])
    return torch.cat(parts)


def test_all_or_some_sentence_ends() -> None:
    streams = Streams(text(), NUM_STREAMS, 7)
    is_end = torch.cat([chunk.input_LB == END for chunk in streams.chunks()])
    assert torch.equal(read(streams, rate=1.0), is_end)
    assert not read(streams, rate=0.0).any()
    assert 0.3 < float(read(streams).sum() / is_end.sum()) < 0.7


@pytest.mark.parametrize("rate", [0.01, 0.15, 0.9])
def test_each_as_often_as_the_rate_says(rate: float) -> None:
    num_places = 200_000
    drawn = scatter(torch.arange(num_places), key=123_456_789) < round(rate * 2**32)
    spread = (rate * (1 - rate) / num_places) ** 0.5
    assert float(drawn.float().mean()) == pytest.approx(rate, abs=5 * spread)
    neighbours = float((drawn[1:] & drawn[:-1]).float().mean())
    assert neighbours == pytest.approx(rate**2, abs=5 * (rate**2 / num_places) ** 0.5), "neighbours are independent"


def test_numbers_are_the_same_in_every_version() -> None:
    """A run is resumed by its numbers, which no file has."""
    assert scatter(torch.tensor([-1, 0, 1, 2**33 + 5]), key=7).tolist() == PUBLISHED


PUBLISHED = [4243350962, 3557715414, 1252914594, 65356255]


def test_another_seed_and_another_epoch_choose_others() -> None:
    streams = Streams(text(), NUM_STREAMS, 7)
    first = read(streams)
    assert torch.equal(first, read(streams))
    assert not torch.equal(first, read(streams, seed=2))
    assert not torch.equal(first, read(streams, epoch=1))


def test_the_same_however_the_text_is_read() -> None:
    whole = read(Streams(text(), NUM_STREAMS, 7))
    for num_steps, num_context in ((100, 0), (9, 0), (7, 3)):
        assert torch.equal(read(Streams(text(), NUM_STREAMS, num_steps, num_context)), whole)
    device = torch.device("cpu")
    assert torch.equal(read(DeviceStreams(text(), NUM_STREAMS, 7, 2, device)), whole)
    for columns in (slice(0, 2), slice(2, 6)):
        assert torch.equal(read(Streams(text(), NUM_STREAMS, 7, 0, columns)), whole[:, columns])


def test_context_words_have_the_resets_that_they_had_in_the_chunk_before() -> None:
    streams = Streams(text(), NUM_STREAMS, 7, num_context=3)
    resets = Resets(streams, 0.5, seed=1)
    first, second = (resets.choose(streams.chunk(index), index, epoch=0).reset_LB for index in (0, 1))
    assert first is not None
    assert second is not None
    assert torch.equal(second[:3], first[-3:])
    assert second[:3].any()
