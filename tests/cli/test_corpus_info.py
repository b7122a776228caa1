"""`bnce info` of a corpus, as a person sees it and as a program reads it; of recipes it keeps working."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command import Command, Refused
from small_corpus import END, VOCAB_SIZE, small_corpus, write_corpus


def aligned_corpus(directory: Path) -> None:
    """Write sentences of ten tokens each, with which streams of a multiple of ten keep step."""
    ids = np.random.default_rng(1).integers(2, VOCAB_SIZE, size=4000)
    ids[9::10] = END
    write_corpus(directory, {"train": ids, "valid": ids[:100]})


def test_corpus_as_json(tmp_path: Path, bnce: Command) -> None:
    corpus = small_corpus(tmp_path / "c")
    record = bnce("info", tmp_path / "c", "--json").json
    assert record["corpus"] == str(tmp_path / "c")
    assert record["vocab_size"] == VOCAB_SIZE
    assert record["vocabulary_digest"] == corpus.vocabulary.digest
    assert record["num_types"] == VOCAB_SIZE - 2
    train = record["splits"]["train"]
    assert train["num_tokens"] == 2003
    assert train["unk_rate"] == pytest.approx(corpus.statistics["train"].unk_rate)
    # Words after the last sentence end make no sentence.
    assert sum(train["sentence_lengths"]) == train["num_sentences"] == np.sum(corpus.split("train") == END)
    assert len(train["sentence_lengths"]) == len(record["sentence_length_bounds"]) + 1
    counts = [top["count"] for top in record["top_words"]]
    assert counts == sorted(corpus.target_counts.tolist(), reverse=True)[:20]
    audit = record["noise_audit"]
    assert audit["batch_size"] == 400
    assert audit["parallel_streams"]["is_unigram"] is True
    assert record["warnings"] == []


def test_batching_that_is_no_noise_is_warned_of(tmp_path: Path, bnce: Command) -> None:
    aligned_corpus(tmp_path / "c")
    warned = bnce("info", tmp_path / "c", "--batch-size", 40).stdout
    assert (
        "warning: With 40 parallel streams, the targets of a time step do not follow the unigram distribution" in warned
    )
    fair = bnce("info", tmp_path / "c", "--batch-size", 43).stdout
    assert "warning:" not in fair
    assert "sentence aligned" in fair


def test_corpus_as_tables(tmp_path: Path, bnce: Command) -> None:
    corpus = small_corpus(tmp_path / "c")
    shown = bnce("info", tmp_path / "c", "--batch-size", 20).stdout
    for expected in ("V = 30", "train", "2,003", "over 100", "noise audit", "B = 20", corpus.vocabulary.digest):
        assert expected in shown


def test_more_streams_than_tokens(tmp_path: Path, refused: Refused) -> None:
    small_corpus(tmp_path / "c", num_train=300)
    message = refused("info", tmp_path / "c")
    assert "has 300 tokens and cannot be read as 400 streams: give a smaller --batch-size" in message
