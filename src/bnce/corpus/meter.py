"""How far preparing is: bytes count when their words are numbered, not when they are read, and ids take time too."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

# Of the time, on text that is cut into words; the rest goes into the vocabulary, the ids and their hashes.
_NUMBERING_SHARE = 0.8

Progress = Callable[[int, int], None]
Item = TypeVar("Item")


class Meter:
    """Tells `progress` how many bytes of how many are done; a total of 0 is unknown."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._bytes_read = 0
        self._read_before: collections.deque[int] = collections.deque()

    def read(self, num_bytes: int) -> None:
        """Hear that bytes were read."""
        self._bytes_read += num_bytes

    def watch(self, blocks: Iterable[Item]) -> Iterator[Item]:
        """Pass blocks on, and remember how much was read for each."""
        for block in blocks:
            self._read_before.append(self._bytes_read)
            yield block

    def numbered(self) -> None:
        """Hear that the next block in turn is numbered."""
        self._tell(self._read_before.popleft() * _NUMBERING_SHARE)

    def encoded(self, share: float) -> None:
        """Hear that this share of the text has its ids."""
        self._tell(max(self._total, self._bytes_read) * (_NUMBERING_SHARE + share * (1 - _NUMBERING_SHARE)))

    def _tell(self, done: float) -> None:
        if self._progress is not None:
            # Of a pipe nobody knows the size beforehand, and a file may grow.
            total = max(self._total, self._bytes_read) if self._total else 0
            self._progress(round(done), total)
