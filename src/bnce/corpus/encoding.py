"""Numbered blocks wait on disk until there is a vocabulary; then their numbers become ids.

Both halves are tasks for workers, on this machine or others. A task that is lost on the way can be run again: it writes
to a file of its own, which nobody knows of before it is whole. What it gives back is taken in the order of the text.
"""

from __future__ import annotations

import functools
import itertools
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from bnce.corpus.manifest import SPLITS, SplitStatistics, sum_statistics
from bnce.corpus.numbering import MARK_BYTES, MARK_IDS, MARKS, NumberedSplit, number_block
from bnce.corpus.store import VOCABULARY_FILE, Ids, IdsFile, ids_dtype, write_description
from bnce.corpus.tally import join_counts
from bnce.corpus.vocabulary import UNK, Vocabulary
from bnce.errors import UserError
from bnce.text.blocks import Block, Cut, gather
from bnce.text.normalise import UNKNOWN_WORD, Normaliser
from bnce.text.shares import Share, read_share

_BLOCKS_JOINED = 16  # whose counts are held one by one


class StoredSplit(NamedTuple):
    """Where the numbers of a split of a block lie, and their figures; sentence ends count as words."""

    offset: int
    num_words: int
    num_documents: int
    sentence_lengths: NDArray[np.int64]


class StoredBlock(NamedTuple):
    """A numbered block in a scratch file: its words, one per line, then the numbers of its splits."""

    path: Path
    words_bytes: int
    dtype: str
    splits: dict[str, StoredSplit]


class Counted(NamedTuple):
    """What the first pass gives back of text: where its blocks lie, and its words with their counts in train."""

    stored: list[StoredBlock]
    words: Any
    train_counts: NDArray[np.int64]
    # How often the training text itself spells the unknown word.
    num_unknown: int


class Encoded(NamedTuple):
    """What the second pass gives back of a block: the ids of its splits, and how often ids are targets in train."""

    ids: dict[str, Ids]
    num_bytes: dict[str, int]
    train_ids: NDArray[Any]
    train_counts: NDArray[np.int64]


@dataclass(frozen=True)
class Numbering:
    """How text is read and numbered, and where the blocks go; other machines may share that disk."""

    normaliser: Normaliser
    cut: Cut
    directory: Path
    is_shared: bool
    field: str
    errors: str

    def __call__(self, text: Block | Share) -> Counted:
        """Number text, and keep all but the words and their counts on disk."""
        if isinstance(text, Block):
            return self.store(text)
        stored = []
        num_unknown = 0
        sums = []
        for block in gather(read_share(text, self.field, self.errors), text.split, text.first_document):
            counted = self.store(block)
            stored += counted.stored
            num_unknown += counted.num_unknown
            sums.append(pyarrow.table({"word": counted.words, "count": counted.train_counts}))
            if len(sums) >= _BLOCKS_JOINED:
                sums = [join_counts(sums)]
        joined = join_counts(sums)
        return Counted(stored, joined["word"].combine_chunks(), joined["count"].to_numpy(), num_unknown)

    def store(self, block: Block) -> Counted:
        """Number a block, and keep all but the words and their counts in a new file."""
        numbered = number_block(block, self.normaliser, self.cut)
        words = numbered.words.slice(len(MARKS))
        train_counts = np.zeros(len(numbered.words), dtype=np.int64)
        # Of no other task, nor of this one if it has to be run again while a worker that was given up still writes.
        path = self.directory / f"{uuid.uuid4().hex}.numbers"
        splits = {}
        dtype = "uint16"
        with open(path, "wb") as file:
            words_bytes = file.write(_join_lines(words))
            for name, part in numbered.splits.items():
                splits[name] = StoredSplit(file.tell(), len(part.numbers), part.num_documents, part.sentence_lengths)
                file.write(part.numbers.data)
                dtype = part.numbers.dtype.name
                if name == "train":
                    train_counts = np.bincount(part.numbers, minlength=len(train_counts))
            if self.is_shared:
                # What a machine only holds in its memory is lost with it, after its task has passed for done.
                file.flush()
                os.fsync(file.fileno())
        stored = StoredBlock(path, words_bytes, dtype, splits)
        num_unknown = int(train_counts[MARKS.index(UNKNOWN_WORD)])
        return Counted([stored], words, train_counts[len(MARKS) :], num_unknown)


def encode_corpus(
    stored: Sequence[StoredBlock],
    directory: Path,
    vocabulary: Vocabulary,
    normaliser: Normaliser,
    num_types: int,
    min_count: int | None,
    in_order: Callable[..., Iterator[Encoded]],
    encoded: Callable[[float], None],
) -> None:
    """Make a corpus directory of numbered blocks; `in_order` maps, and `encoded` is told the share that is done."""
    # First of all, since the workers read it there.
    vocabulary.write(directory / VOCABULARY_FILE)
    target_counts = np.zeros(len(vocabulary), dtype=np.int64)
    figures: dict[str, list[SplitStatistics]] = {split: [] for split in SPLITS}
    files = {
        split: IdsFile(directory, split, len(vocabulary))
        for split in SPLITS
        if any(split in block.splits for block in stored)
    }
    encode = functools.partial(encode_stored, directory=directory, digest=vocabulary.digest)
    try:
        for done, (block, result) in enumerate(zip(stored, in_order(encode, stored), strict=True), start=1):
            # An id may come twice, for all unknown words have one.
            np.add.at(target_counts, result.train_ids, result.train_counts)
            for split, part in block.splits.items():
                files[split].append(result.ids[split])
                figures[split].append(describe(part, result.ids[split], result.num_bytes[split]))
            encoded(done / len(stored))
    finally:
        read_ids.cache_clear()
    statistics = {split: sum_statistics(parts) for split, parts in figures.items() if parts}
    hashes = {split: file.finish() for split, file in files.items()}
    write_description(directory, vocabulary, normaliser, target_counts, statistics, hashes, num_types, min_count)


def encode_stored(block: StoredBlock, directory: Path, digest: str) -> Encoded:
    """Turn the numbers of a block into ids of the vocabulary in a directory."""
    encoded, num_bytes = {}, {}
    train_counts = np.zeros(0, dtype=np.int64)
    with open(block.path, "rb") as file:
        words = file.read(block.words_bytes).split(b"\n")[:-1]
        known = look_up(words, directory, digest)
        for name, part in block.splits.items():
            file.seek(part.offset)
            numbers = np.fromfile(file, dtype=block.dtype, count=part.num_words)
            if len(numbers) < part.num_words:
                raise UserError(
                    f"The temporary file '{block.path}' is shorter than it was written: check the disk or the shared "
                    "file system, and run it again."
                )
            encoded[name] = known.ids[numbers]
            counts = np.bincount(numbers, minlength=len(known.num_bytes))
            num_bytes[name] = int(counts @ known.num_bytes)
            if name == "train":
                train_counts = counts
    return Encoded(encoded, num_bytes, known.ids[: len(train_counts)], train_counts)


class NumberedWords(NamedTuple):
    """The words of a block in the order of their numbers: their ids, and the bytes of each with the blank after it."""

    ids: Ids
    num_bytes: NDArray[np.int64]

    @classmethod
    def of(cls, found: Ids, lengths: Iterable[int], vocab_size: int) -> NumberedWords:
        """Put the marks before the words, of which these ids were found and each of which has so many bytes."""
        ids = np.append(MARK_IDS, found).astype(ids_dtype(vocab_size))
        num_bytes = np.fromiter(itertools.chain(MARK_BYTES, (length + 1 for length in lengths)), dtype=np.int64)
        return cls(ids, num_bytes)


def describe(part: NumberedSplit | StoredSplit, ids: Ids, num_bytes: int) -> SplitStatistics:
    """Give the figures of a split of a block."""
    return SplitStatistics(
        num_tokens=len(ids),
        num_sentences=int(part.sentence_lengths.sum()),
        num_documents=part.num_documents,
        num_oov=int(np.count_nonzero(ids == UNK)),
        sentence_lengths=tuple(part.sentence_lengths.tolist()),
        num_bytes=num_bytes,
    )


def look_up(words: Sequence[bytes], directory: Path, digest: str) -> NumberedWords:
    """Find words in the vocabulary of a directory: a corpus or a run."""
    ids = read_ids(directory / VOCABULARY_FILE, digest)
    in_vocabulary = map(ids.get, words, itertools.repeat(UNK))
    return NumberedWords.of(np.fromiter(in_vocabulary, dtype=np.int32), map(len, words), len(ids))


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
