"""Documents gathered into blocks, the pieces of text that processes hand to each other, and drawn into splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bnce.text.sources import Document, batches

# On a line of its own after every document; text has no NULs, so that nothing else can look like it.
DOCUMENT_END = "\0"
_BETWEEN = f"\n{DOCUMENT_END}\n"

# A larger block has fewer distinct words per token, a smaller one less text in memory: beyond this little is gained.
BLOCK_CHARACTERS = 2**22


class Block(NamedTuple):
    """Whole documents to be numbered together; without a split each document is drawn into one."""

    split: str | None
    first_document: int
    num_documents: int
    # UTF-8, since a string with one wide character in it is copied from process to process at several times the size.
    text: bytes


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


def gather(documents: Iterable[Document], split: str | None, first: int = 0) -> Iterator[Block]:
    """Gather documents into blocks of bounded size; `first` is the number of the first in its text."""
    for gathered in batches(map("\n".join, documents), len, BLOCK_CHARACTERS):
        yield _block(split, first, gathered)
        first += len(gathered)


def _block(split: str | None, first: int, documents: list[str]) -> Block:
    text = _BETWEEN.join([*documents, ""])
    if text.count(DOCUMENT_END) != len(documents):
        # Files are searched for NULs as they are read, but an escape in a record or a page can spell one.
        text = _BETWEEN.join([*(document.replace(DOCUMENT_END, "\ufffd") for document in documents), ""])
    return Block(split, first, len(documents), text.encode("utf-8", "replace"))
