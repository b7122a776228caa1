"""Shares of text that workers read for themselves: files, or byte ranges of them that end where a document does."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bnce.errors import UserError
from bnce.text.intake import read_text
from bnce.text.records import holds_records
from bnce.text.sources import (
    DOCSTRINGS,
    STANDARD_INPUT,
    Document,
    batches,
    count_lines,
    file_ending,
    group_lines,
    read_range,
    source_bytes,
)
from bnce.text.unpack import PACKED

# A few blocks: a second or two of work, and no more than that is lost with a worker.
SHARE_BYTES = 2**24
# A file that cannot be cut goes to one worker if there are that many of its size. Otherwise the text is read here and
# dealt out in blocks, which keeps some ten workers busy.
_FEW = 16
# Of a file in which no document ends for so long, there is no telling where one does: every 100 lines, but which?
_LONGEST_SHARES = 4
_BLANK_LINE = re.compile(rb"\n\r?\n")
_WINDOW_BYTES = 2**16


class Part(NamedTuple):
    """A range of bytes of a file, which begins where a document may begin."""

    name: str  # as it was given
    path: str  # from anywhere
    begin: int
    end: int
    file_bytes: int


class Share(NamedTuple):
    """Some parts of a text, one after the other; without a split each document is drawn into one."""

    split: str | None
    first_document: int
    parts: tuple[Part, ...]

    @property
    def num_bytes(self) -> int:
        """How much there is to read."""
        return sum(part.end - part.begin for part in self.parts)


def deal(names: Sequence[str]) -> Iterator[tuple[Part, ...] | str]:
    """Deal files out in shares of a bounded size; the name of a file that had better be read here stands for itself."""
    largest = sum(map(source_bytes, names)) / _FEW
    cut: Iterator[Part | str] = itertools.chain.from_iterable(_cut(name, largest) or [name] for name in names)
    for is_here, group in itertools.groupby(cut, key=lambda one: isinstance(one, str)):
        if is_here:
            yield from map(str, group)
        else:
            parts = (part for part in group if isinstance(part, Part))
            yield from map(tuple, batches(parts, lambda part: part.end - part.begin, SHARE_BYTES))


def _cut(name: str, largest: float) -> list[Part] | None:
    num_bytes = 0 if name in (STANDARD_INPUT, DOCSTRINGS) else source_bytes(name)
    if not num_bytes:
        return None
    is_plain = file_ending(name) not in PACKED and not holds_records(name)
    ends = _document_ends(name, num_bytes) if is_plain else None
    if ends is None:
        if num_bytes > largest:
            return None
        ends = [num_bytes]
    path = os.path.abspath(name)
    return [Part(name, path, begin, end, num_bytes) for begin, end in zip([0, *ends], ends, strict=False)]


def _document_ends(name: str, num_bytes: int) -> list[int] | None:
    """Find a blank line after every SHARE_BYTES, and the end; nothing if one of them is too far away."""
    ends = [0]
    with open(name, "rb") as file:
        position = SHARE_BYTES
        while position < num_bytes:
            file.seek(position)
            # Some bytes more, so that a blank line on the edge of two windows is found in the first.
            found = _BLANK_LINE.search(file.read(_WINDOW_BYTES + 2))
            if found is None:
                position += _WINDOW_BYTES
                if min(position, num_bytes) - ends[-1] > _LONGEST_SHARES * SHARE_BYTES:
                    return None
            elif position + found.end() < num_bytes:
                ends.append(position + found.end())
                position = ends[-1] + SHARE_BYTES
            else:
                break
    return [*ends[1:], num_bytes]


def read_share(share: Share, field: str, errors: str) -> Iterator[Document]:
    """Stream the documents of a share."""
    for part in share.parts:
        yield from read_part(part, field, errors)


def count_documents(share: Share, field: str, errors: str) -> list[int]:
    """Count the documents of every part of a share."""
    return [sum(1 for _ in read_part(part, field, errors)) for part in share.parts]


def read_part(part: Part, field: str, errors: str) -> Iterator[Document]:
    """Stream the documents of a part."""
    if source_bytes(part.path) != part.file_bytes:
        raise UserError(
            f"'{part.name}' has changed, or is another file on another machine: all workers must see the same file "
            "under the same path."
        )
    return _documents(part, part.path, field, errors)


def _documents(part: Part, path: str, field: str, errors: str, num_lines: int = 0) -> Iterator[Document]:
    if part.begin == 0 and part.end == part.file_bytes:
        return read_text(path, field, errors)
    return group_lines(read_range(path, part.begin, part.end, errors, num_lines))


def explain(share: Share, field: str, errors: str) -> None:
    """Read a share here, for what is wrong with it: here its name and the numbers of its lines are known."""
    for part in share.parts:
        num_lines = count_lines(part.name, part.begin)
        for _ in _documents(part, part.name, field, errors, num_lines):
            pass
