"""Numbered blocks wait on disk until there is a vocabulary; then their numbers become ids in their final places.

Both halves run in the worker processes, which write and read for themselves: only words and their counts travel.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from bnce.corpus.manifest import SPLITS, SplitStatistics, sum_statistics
from bnce.corpus.numbering import MARK_IDS, MARKS, number_block
from bnce.corpus.store import (
    VOCABULARY_FILE,
    hash_ids,
    ids_dtype,
    start_ids,
    write_description,
    write_ids_at,
)
from bnce.corpus.vocabulary import UNK, Vocabulary
from bnce.machine.workers import Workers
from bnce.text.blocks import Block, Cut
from bnce.text.normalise import UNKNOWN_WORD, Normaliser


class StoredSplit(NamedTuple):
    """Where the numbers of a split of a block lie, and their figures."""

    offset: int
    num_tokens: int
    num_documents: int
    num_sentences: int
    sentence_lengths: NDArray[np.int64]


class StoredBlock(NamedTuple):
    """A numbered block in a scratch file: its words, one per line, then the numbers of its splits."""

    path: Path
    offset: int
    words_bytes: int
    dtype: str
    splits: dict[str, StoredSplit]


class Counted(NamedTuple):
    """What the first pass gives back of a block: where it lies, and its words with their counts in train."""

    stored: StoredBlock
    words: Any
    train_counts: NDArray[np.int64]
    # How often the training text itself spells the unknown word.
    num_unknown: int


class Encoded(NamedTuple):
    """What the second pass gives back of a block: its unknown words, and how often ids are targets in train."""

    num_oov: dict[str, int]
    train_ids: NDArray[Any]
    train_counts: NDArray[np.int64]


def number_and_store(block: Block, normaliser: Normaliser, cut: Cut, directory: Path) -> Counted:
    """Number a block, and keep all but the words and their counts on disk."""
    numbered = number_block(block, normaliser, cut)
    words = numbered.words.slice(len(MARKS))
    train_counts = np.zeros(len(numbered.words), dtype=np.int64)
    # One file per process: nobody else writes to it, and there are not thousands of them.
    path = directory / f"{os.getpid()}.numbers"
    splits = {}
    dtype = "uint16"
    with open(path, "ab") as file:
        offset = file.tell()
        words_bytes = file.write(_join_lines(words))
        for name, part in numbered.splits.items():
            counts = (part.num_documents, part.num_sentences, part.sentence_lengths)
            splits[name] = StoredSplit(file.tell(), len(part.numbers), *counts)
            file.write(part.numbers.data)
            dtype = part.numbers.dtype.name
            if name == "train":
                train_counts = np.bincount(part.numbers, minlength=len(train_counts))
    stored = StoredBlock(path, offset, words_bytes, dtype, splits)
    num_unknown = int(train_counts[MARKS.index(UNKNOWN_WORD)])
    return Counted(stored, words, train_counts[len(MARKS) :], num_unknown)


def encode_corpus(
    stored: Sequence[StoredBlock],
    directory: Path,
    vocabulary: Vocabulary,
    normaliser: Normaliser,
    num_types: int,
    min_count: int | None,
    workers: Workers,
    encoded: Callable[[float], None],
) -> None:
    """Make a corpus directory of numbered blocks; `encoded` is told the share that is done."""
    # First of all, since the workers read it there.
    vocabulary.write(directory / VOCABULARY_FILE)
    target_counts = np.zeros(len(vocabulary), dtype=np.int64)
    figures: dict[str, list[SplitStatistics]] = {split: [] for split in SPLITS}
    sizes = {
        split: sum(block.splits[split].num_tokens for block in stored if split in block.splits) for split in SPLITS
    }
    for split, num_tokens in sizes.items():
        if num_tokens:
            start_ids(directory, split, num_tokens, len(vocabulary))
    encode = functools.partial(encode_stored, vocabulary=directory / VOCABULARY_FILE, digest=vocabulary.digest)
    try:
        for done, (block, result) in enumerate(zip(stored, workers.map(encode, _jobs(stored)), strict=True), start=1):
            # An id may come twice, for all unknown words have one.
            np.add.at(target_counts, result.train_ids, result.train_counts)
            for split, part in block.splits.items():
                counts = (part.num_tokens, part.num_sentences, part.num_documents, result.num_oov[split])
                figures[split].append(SplitStatistics(*counts, tuple(part.sentence_lengths.tolist())))
            encoded(done / len(stored))
    finally:
        read_ids.cache_clear()
    statistics = {split: sum_statistics(parts) for split, parts in figures.items() if parts}
    hashes = {split: hash_ids(directory, split) for split in statistics}
    write_description(directory, vocabulary, normaliser, target_counts, statistics, hashes, num_types, min_count)


def _jobs(stored: Sequence[StoredBlock]) -> Iterator[tuple[StoredBlock, dict[str, int]]]:
    """Say of every block which token of each split its first one is."""
    first_token = dict.fromkeys(SPLITS, 0)
    for block in stored:
        yield block, dict(first_token)
        for split, part in block.splits.items():
            first_token[split] += part.num_tokens


def encode_stored(job: tuple[StoredBlock, dict[str, int]], vocabulary: Path, digest: str) -> Encoded:
    """Write the ids of a block to their places: `job` says which token of each split its first one is."""
    block, first_token = job
    ids = read_ids(vocabulary, digest)
    num_oov = {}
    train_counts = np.zeros(0, dtype=np.int64)
    with open(block.path, "rb") as file:
        file.seek(block.offset)
        words = file.read(block.words_bytes).split(b"\n")[:-1]
        in_vocabulary = map(ids.get, words, itertools.repeat(UNK))
        id_of = np.fromiter(itertools.chain(MARK_IDS, in_vocabulary), dtype=ids_dtype(len(ids)))
        for name, part in block.splits.items():
            file.seek(part.offset)
            numbers = np.fromfile(file, dtype=block.dtype, count=part.num_tokens)
            part_ids = id_of[numbers]
            write_ids_at(vocabulary.parent, name, part_ids, first_token[name])
            num_oov[name] = int(np.count_nonzero(part_ids == UNK))
            if name == "train":
                train_counts = np.bincount(numbers, minlength=len(id_of))
    return Encoded(num_oov, id_of[: len(train_counts)], train_counts)


@functools.lru_cache(maxsize=1)
def read_ids(vocabulary: Path, digest: str) -> dict[bytes, int]:
    """Read a vocabulary file once per process, as bytes: they take less room than strings and less time to look up.

    `digest` is for the cache alone: a path may be that of another file than it was.
    """
    return {word: number for number, word in enumerate(vocabulary.read_bytes().split(b"\n")[:-1])}


def _join_lines(words: Any) -> bytes:
    if not len(words):
        return b""
    joined = pyarrow.compute.binary_join(pyarrow.ListArray.from_arrays([0, len(words)], words), "\n")
    return bytes(joined[0].as_buffer()) + b"\n"
