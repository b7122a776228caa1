"""The audit tells batches that are unigram noise from those that are not."""

from __future__ import annotations

import numpy as np
import pytest
from small_corpus import END

from bnce.corpus.audit import audit_sentences, audit_streams, divergence
from bnce.corpus.streams import Streams

BATCH_SIZE = 50


def zipf_words(num_words: int) -> np.ndarray:
    generator = np.random.default_rng(7)
    return np.exp(generator.random(num_words) * np.log(2000)).astype(np.int64) + 1


def sentences(lengths: np.ndarray) -> np.ndarray:
    """Lay out sentences of these lengths, their ends among them, of words by chance."""
    ids = zipf_words(int(lengths.sum()))
    ids[np.cumsum(lengths) - 1] = END
    return ids


def counts_of(ids: np.ndarray) -> np.ndarray:
    return np.bincount(ids, minlength=2002)


def test_streams_of_ragged_sentences_are_unigram_noise() -> None:
    ids = sentences(np.random.default_rng(3).integers(5, 40, size=8000))
    streams = audit_streams(ids, counts_of(ids), BATCH_SIZE)
    assert streams.is_unigram
    assert streams.kl == pytest.approx(streams.kl_by_chance, abs=4 * streams.standard_error)
    assert streams.num_steps == 128
    assert 0 < streams.standard_error < 0.1 * streams.kl


def test_sentences_side_by_side_are_not() -> None:
    # Short, so that a sentence's end is a common word that the first steps lack and the last have too often.
    ids = sentences(np.random.default_rng(3).integers(8, 11, size=8000))
    aligned = audit_sentences(ids, counts_of(ids), batch_size=200)
    assert not aligned.is_unigram
    assert aligned.kl > aligned.kl_by_chance + 6 * aligned.standard_error
    assert audit_streams(ids, counts_of(ids), batch_size=200).is_unigram


def test_streams_that_keep_step_with_sentences_are_found() -> None:
    """All sentences are of 10 tokens, and so is the distance between streams a multiple of 10."""
    aligned = sentences(np.full(8000, 10))
    assert len(aligned) // BATCH_SIZE % 10 == 0
    found = audit_streams(aligned, counts_of(aligned), BATCH_SIZE)
    assert not found.is_unigram
    shuffled = np.random.default_rng(5).permutation(aligned)
    fair = audit_streams(shuffled, counts_of(shuffled), BATCH_SIZE)
    assert fair.is_unigram
    assert found.kl > fair.kl + 0.1


def test_audit_reads_what_training_reads() -> None:
    """A text of one word a stream: at every step the batch is the same, and its distance is known."""
    ids = np.repeat(np.arange(4), 100)
    (step,) = {tuple(Streams(ids, 4, 1).chunk(index).target_TB[0].tolist()) for index in range(100)}
    assert step == (0, 1, 2, 3)
    assert audit_streams(ids, np.bincount(ids), 4).kl == pytest.approx(0)
    assert audit_streams(ids, np.bincount(ids), 4).kl_by_chance > 0.1


def test_divergence() -> None:
    probability = np.array([0.5, 0.25, 0.25])
    assert divergence(np.array([0, 0, 1, 2]), probability) == pytest.approx(0)
    assert divergence(np.array([2, 2]), probability) == pytest.approx(np.log(4))
    assert divergence(np.array([0, 1]), probability) == pytest.approx(0.5 * np.log(1) + 0.5 * np.log(2))


def test_text_without_sentences() -> None:
    ids = zipf_words(1000)
    found = audit_sentences(ids, counts_of(ids), BATCH_SIZE)
    assert found.num_steps == 0
    assert np.isnan(found.kl)
