"""Streams: every token is a target once, follows its input, and brings the context it needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_corpus import END

from bnce import UserError
from bnce.corpus import streams as batches
from bnce.corpus.streams import DeviceStreams, Streams


def numbered(num_tokens: int) -> np.ndarray:
    """Make a text that names its own places, from 1 on, so that `</s>` is not among them."""
    return np.arange(1, num_tokens + 1, dtype=np.uint16)


def test_a_small_text_by_hand() -> None:
    streams = Streams(numbered(11), batch_size=2, num_steps=2)
    chunks = list(streams.chunks())
    assert [chunk.target_TB.tolist() for chunk in chunks] == [[[1, 6], [2, 7]], [[3, 8], [4, 9]], [[5, 10]]]
    # Before the text stands </s>; before the second stream the last word of the first.
    assert [chunk.input_LB.tolist() for chunk in chunks] == [[[END, 5], [1, 6]], [[2, 7], [3, 8]], [[4, 9]]]
    assert len(streams) == 3
    assert streams.num_tokens == 10


def test_context_rows_come_before_the_inputs() -> None:
    first, second = Streams(numbered(8), batch_size=2, num_steps=2, num_context=3).chunks()
    assert first.input_LB.tolist() == [[END, 1], [END, 2], [END, 3], [END, 4], [1, 5]]
    assert first.target_TB.tolist() == [[1, 5], [2, 6]]
    assert second.input_LB.tolist() == [[END, 3], [END, 4], [1, 5], [2, 6], [3, 7]]
    assert second.target_TB.tolist() == [[3, 7], [4, 8]]


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 9), st.integers(0, 4))
def test_every_token_is_a_target_once(num_tokens: int, batch_size: int, num_steps: int, num_context: int) -> None:
    ids = numbered(num_tokens)
    if num_tokens < batch_size * num_steps:
        with pytest.raises(UserError):
            Streams(ids, batch_size, num_steps, num_context)
        return
    streams = Streams(ids, batch_size, num_steps, num_context)
    chunks = list(streams.chunks())
    assert len(chunks) == len(streams)
    assert all(len(chunk.target_TB) == num_steps for chunk in chunks[:-1])
    assert 1 <= len(chunks[-1].target_TB) <= num_steps
    targets = torch.cat([chunk.target_TB for chunk in chunks]).T.reshape(-1)
    assert targets.tolist() == list(range(1, streams.num_tokens + 1))
    assert num_tokens - streams.num_tokens < batch_size
    for chunk in chunks:
        assert len(chunk.input_LB) == num_context + len(chunk.target_TB)
        for offset in range(num_context + 1):
            # The text names its places, so a word that is `distance` before its target is that much smaller.
            distance = num_context + 1 - offset
            expected = (chunk.target_TB - distance).clamp(min=END)
            assert torch.equal(chunk.input_LB[offset : offset + len(chunk.target_TB)], expected)


def test_ids_become_what_torch_indexes_with() -> None:
    chunk = Streams(np.array([65535, 65534, 3], dtype=np.uint16), batch_size=1, num_steps=3).chunk(0)
    assert chunk.target_TB.dtype == chunk.input_LB.dtype == torch.int64
    assert chunk.target_TB.tolist() == [[65535], [65534], [3]]


def test_a_memory_map_is_read_and_left_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", numbered(6))
    ids = np.load(tmp_path / "ids.npy", mmap_mode="r")
    chunk = Streams(ids, batch_size=2, num_steps=3).chunk(0)
    chunk.target_TB.zero_()
    assert ids.tolist() == [1, 2, 3, 4, 5, 6]


def test_too_little_text_is_refused_with_the_numbers() -> None:
    Streams(numbered(40), batch_size=8, num_steps=5)
    with pytest.raises(
        UserError,
        match=r"^The text has 39 tokens, but one batch of 8 streams and 5 steps needs 40: use more text, "
        r"or a smaller training.batch_size or training.num_steps\.$",
    ):
        Streams(numbered(39), batch_size=8, num_steps=5)


def test_reading_ahead_gives_the_same_chunks() -> None:
    from bnce.corpus.streams import PrefetchedStreams

    ids = np.random.default_rng(1).integers(0, 50, size=103)
    plain, ahead = Streams(ids, 4, 5, 2), PrefetchedStreams(ids, 4, 5, 2)
    for index in [*range(len(plain)), *range(len(plain)), 2, 1, 1]:
        expected, found = plain.chunk(index), ahead.chunk(index)
        assert torch.equal(expected.input_LB, found.input_LB)
        assert torch.equal(expected.target_TB, found.target_TB)


@pytest.mark.parametrize(("num_tokens", "batch_size", "num_steps"), [(503, 7, 9), (500, 10, 5), (40, 1, 6)])
def test_most_different_targets_of_a_chunk(
    num_tokens: int, batch_size: int, num_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "SORTED_AT_ONCE", 3 * batch_size * num_steps)
    ids = np.random.default_rng(1).zipf(1.5, num_tokens) % 50
    for num_context in (0, 3):
        streams = DeviceStreams(ids, batch_size, num_steps, num_context, torch.device("cpu"))
        assert streams.max_distinct_targets() == max(len(chunk.target_TB.unique()) for chunk in streams.chunks())
    assert Streams(ids, batch_size, num_steps).max_distinct_targets() is None


def test_a_last_chunk_may_have_the_most() -> None:
    ids = np.array([[1, 1, 1, 2], [1, 1, 1, 3]]).reshape(-1)  # the short last chunk has two words, the others one
    assert DeviceStreams(ids, 2, 3, 0, torch.device("cpu")).max_distinct_targets() == 2
