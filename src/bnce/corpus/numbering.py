"""Words become numbers before there is a vocabulary: each block numbers its own, the tally joins them.

The text is read a single time, so that a pipe will do and nothing is cut into words twice. A worker numbers
the words of its block by first occurrence; the tally gives every word one number for the whole text, counts
it, and keeps the numbered text in scratch files. When the counts have decided the vocabulary, one table
look-up turns numbers into ids. All numberings begin with the specials, so theirs are their ids throughout.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.normalise import Normaliser
from bnce.corpus.sources import Document
from bnce.corpus.store import SPLITS, SplitStatistics, write_description, write_ids
from bnce.corpus.vocabulary import END, SPECIALS, UNK, Vocabulary

_ENCODED_AT_ONCE = 2**22

Numbers = NDArray[np.int32]


class Block(NamedTuple):
    """Whole documents to be numbered together; without a split each document is drawn into one."""

    split: str | None
    first_document: int
    documents: list[Document]


class NumberedSplit(NamedTuple):
    """What a block holds for one split, in the block's own numbers."""

    numbers: Numbers
    num_sentences: int
    num_documents: int


class NumberedBlock(NamedTuple):
    """The words of a block in the order of their numbers, the specials left out, and its text by split."""

    words: list[str]
    splits: dict[str, NumberedSplit]


@dataclass(frozen=True)
class Cut:
    """Draws documents into splits by a hash of seed and index: the same whoever works on them, and when."""

    seed: int
    fractions: dict[str, float]

    def __call__(self, document: int) -> str:
        """Name the split of a document."""
        digest = hashlib.blake2b(f"{self.seed}:{document}".encode(), digest_size=8).digest()
        draw = int.from_bytes(digest, "little") / 2**64
        for split, fraction in self.fractions.items():
            if draw < fraction:
                return split
            draw -= fraction
        return "train"


def number_block(block: Block, normaliser: Normaliser, cut: Cut) -> NumberedBlock:
    """Cut the documents of a block into words and number these by first occurrence."""
    # The dictionary hands out the next number by itself, so the loop over words never leaves the interpreter.
    number_of: defaultdict[str, int] = defaultdict(itertools.count(len(SPECIALS)).__next__)
    number_of.update(zip(SPECIALS, itertools.count(), strict=False))
    number = number_of.__getitem__
    parts: dict[str, list[list[int]]] = defaultdict(list)
    num_sentences: dict[str, int] = defaultdict(int)
    for index, document in enumerate(block.documents, start=block.first_document):
        split = block.split or cut(index)
        numbers: list[int] = []
        for line in document:
            for sentence in normaliser(line):
                numbers.extend(map(number, sentence))
                numbers.append(END)
                num_sentences[split] += 1
        if numbers:
            parts[split].append(numbers)
    splits = {
        split: NumberedSplit(
            np.fromiter(itertools.chain.from_iterable(documents), dtype=np.int32),
            num_sentences[split],
            len(documents),
        )
        for split, documents in parts.items()
    }
    return NumberedBlock(list(number_of)[len(SPECIALS) :], splits)


@dataclass
class Tally:
    """One number for every word of the text, its counts by split, and the numbered text in scratch files."""

    directory: Path
    numbers: dict[str, int] = field(default_factory=lambda: {word: i for i, word in enumerate(SPECIALS)})
    counts: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    num_sentences: dict[str, int] = field(default_factory=dict)
    num_documents: dict[str, int] = field(default_factory=dict)
    files: dict[str, IO[bytes]] = field(default_factory=dict)
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Tally:
        for split in SPLITS:
            self.files[split] = self._open.enter_context(open(self._scratch(split), "wb"))
            self.counts[split] = np.zeros(len(SPECIALS), dtype=np.int64)
            self.num_sentences[split] = self.num_documents[split] = 0
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def add(self, block: NumberedBlock) -> None:
        """Take in a block: its own numbers become those of the whole text."""
        numbers = self.numbers
        in_text = (numbers.setdefault(word, len(numbers)) for word in block.words)
        number_of = np.fromiter(itertools.chain(range(len(SPECIALS)), in_text), dtype=np.int32)
        for split, part in block.splits.items():
            counts = self.counts[split]
            if len(counts) < len(numbers):
                counts = np.concatenate([counts, np.zeros(2 * len(numbers) - len(counts), dtype=np.int64)])
                self.counts[split] = counts
            # No number occurs twice in number_of, so every count is added.
            counts[number_of] += np.bincount(part.numbers, minlength=len(number_of))
            self.files[split].write(number_of[part.numbers].data)
            self.num_sentences[split] += part.num_sentences
            self.num_documents[split] += part.num_documents

    def num_tokens(self, split: str) -> int:
        """Count the tokens of a split, sentence ends included."""
        return int(self.counts[split].sum())

    def train_counts(self) -> dict[str, int]:
        """Count the words of the training split; words of other splits alone are not among them."""
        counts = zip(self.numbers, self.counts["train"].tolist(), strict=False)
        return {word: count for word, count in counts if count}

    def write_corpus(self, vocabulary: Vocabulary, normaliser: Normaliser) -> None:
        """Turn the numbers of the scratch files into ids, and remove them."""
        id_of = vocabulary.encode(self.numbers)
        target_counts = np.zeros(len(vocabulary), dtype=np.int64)
        statistics = {}
        hashes = {}
        for split in SPLITS:
            counts = np.zeros(len(id_of), dtype=np.int64)
            counts[: len(self.counts[split])] = self.counts[split][: len(id_of)]
            if split == "train":
                np.add.at(target_counts, id_of, counts)
            if num_tokens := int(counts.sum()):
                blocks = (id_of[numbers] for numbers in _read_numbers(self._scratch(split)))
                hashes[split] = write_ids(self.directory, split, blocks, num_tokens, len(vocabulary))
                statistics[split] = SplitStatistics(
                    num_tokens=num_tokens,
                    num_sentences=self.num_sentences[split],
                    num_documents=self.num_documents[split],
                    num_oov=int(counts[id_of == UNK].sum()),
                )
            self._scratch(split).unlink()
        write_description(self.directory, vocabulary, normaliser, target_counts, statistics, hashes)

    def _scratch(self, split: str) -> Path:
        return self.directory / f"{split}.numbers"


def _read_numbers(path: Path) -> Iterator[Numbers]:
    with open(path, "rb") as file:
        while len(numbers := np.fromfile(file, dtype=np.int32, count=_ENCODED_AT_ONCE)):
            yield numbers
