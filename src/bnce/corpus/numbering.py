"""Words become numbers before there is a vocabulary: each block numbers its own by first occurrence.

Nothing here goes through a text word by word in Python: NumPy finds where words begin, and Arrow, whose
dictionary encoding was the fastest of the tools tried (benchmarks/results/prepare.md), numbers them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from bnce.corpus.manifest import count_lengths
from bnce.corpus.vocabulary import END, UNK
from bnce.text.blocks import DOCUMENT_END, Block, Cut
from bnce.text.normalise import UNKNOWN_WORD, Normaliser

# They open every block's numbering, so that their numbers are the same in all: a sentence's end, a document's,
# the one special word that text may spell, and what is between two blanks.
MARKS = ("\n", DOCUMENT_END, UNKNOWN_WORD, "")
MARK_IDS = (END, END, UNK, UNK)
# The bytes of each in a text of one sentence per line, with one blank or line end after every word.
MARK_BYTES = (0, 0, len(UNKNOWN_WORD) + 1, 0)
_OPENING = "".join(f" {mark}" for mark in MARKS).encode() + b" "

_DOCUMENT = MARKS.index(DOCUMENT_END)
_EMPTY = MARKS.index("")
_BLANK = ord(" ")

Numbers = NDArray[Any]


class NumberedSplit(NamedTuple):
    """What a block holds for one split, in the block's own numbers."""

    numbers: Numbers
    num_documents: int
    sentence_lengths: NDArray[np.int64]


class NumberedBlock(NamedTuple):
    """The words of a block in the order of their numbers, the marks first, and its text by split."""

    words: Any
    splits: dict[str, NumberedSplit]


class NumberedDocuments(NamedTuple):
    """The words of a block in the order of their numbers, the marks first, and its documents one after the other."""

    words: Any
    numbers: Numbers
    lengths: NDArray[np.int64]  # of each document; 0 for one without words


def number_documents(block: Block, normaliser: Normaliser) -> NumberedDocuments:
    """Cut the documents of a block into words and number these by first occurrence; a mark ends every sentence."""
    encoded = cut_words(normaliser.spaced(block.text.decode())).dictionary_encode()
    # Every word comes with the blank before it, and two blanks in a row make an empty word.
    words = pyarrow.compute.utf8_slice_codeunits(encoded.dictionary, 1)
    numbers = encoded.indices.to_numpy()[len(MARKS) :]
    # The largest numbers of most blocks fit in two bytes, which halves what goes to disk and back.
    numbers = numbers[numbers != _EMPTY].astype(np.uint16 if len(words) <= 2**16 else np.int32)
    # A mark right after a mark ends nothing: an empty line, or the line that a document's end stands on.
    is_mark = numbers <= _DOCUMENT
    is_kept = ~is_mark
    is_kept[1:] |= ~is_mark[:-1]
    document_end_at = np.flatnonzero(numbers == _DOCUMENT)
    assert len(document_end_at) == block.num_documents
    lengths = np.add.reduceat(is_kept, np.append(0, document_end_at[:-1] + 1), dtype=np.int64)
    return NumberedDocuments(words, numbers[is_kept], lengths)


def number_block(block: Block, normaliser: Normaliser, cut: Cut) -> NumberedBlock:
    """Number the documents of a block, and draw each into its split."""
    words, numbers, length = number_documents(block, normaliser)
    if block.split is not None:
        names = [block.split] * len(length)
    else:
        names = [cut(index) for index in range(block.first_document, block.first_document + len(length))]
    documents: dict[str, list[Numbers]] = {}
    end = np.cumsum(length)
    for name, first, last in zip(names, (end - length).tolist(), end.tolist(), strict=True):
        if first < last:
            documents.setdefault(name, []).append(numbers[first:last])
    return NumberedBlock(words, {name: _split(parts) for name, parts in documents.items()})


def _split(documents: Sequence[Numbers]) -> NumberedSplit:
    numbers = np.concatenate(documents)
    return NumberedSplit(numbers, len(documents), count_lengths(np.flatnonzero(numbers <= _DOCUMENT)))


def cut_words(spaced: str) -> Any:
    """Cut text before every space into an Arrow array, with every newline and NUL a word; MARKS come first."""
    marked = spaced.encode().replace(b"\n", b" \n ").replace(b"\0", b" \0 ")
    # The text itself becomes the array's: all that has to be found is where words begin.
    text = _OPENING + marked
    begin = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == _BLANK).astype(np.int32)
    begin = np.append(begin, np.int32(len(text)))
    return pyarrow.StringArray.from_buffers(len(begin) - 1, pyarrow.py_buffer(begin), pyarrow.py_buffer(text))
