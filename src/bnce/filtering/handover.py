"""Threads that work side by side: each hands items to the next one, in order, and only so many wait in between."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Generator, Iterator
from typing import Any, Generic, TypeVar

ITEMS_WAITING = 8
_SECONDS_BETWEEN_LOOKS = 0.1
_PATIENCE_SECONDS = 2.0

Item = TypeVar("Item")


class ClosedError(Exception):
    """Whoever put items will put no more, and what was there is not wanted."""


class Handover(Iterator[Item], Generic[Item]):
    """Items from one thread to another. Each side sees within a moment that the other has given up."""

    def __init__(self, size: int = ITEMS_WAITING) -> None:
        self._waiting: queue.Queue[Any] = queue.Queue(size)
        self._is_closed = threading.Event()
        self._end: BaseException | None = None

    def put(self, item: Item) -> bool:
        """Wait for room and hand an item over; say whether anybody will take it."""
        return self._put((item, None))

    def end(self, error: BaseException | None = None) -> None:
        """Say that there are no more items, or what keeps the next one from coming."""
        self._put((None, error or StopIteration()))

    def close(self) -> None:
        """Give up at once, on either side."""
        self._is_closed.set()

    def _put(self, entry: tuple[Item | None, BaseException | None]) -> bool:
        while not self._is_closed.is_set():
            with contextlib.suppress(queue.Full):
                self._waiting.put(entry, timeout=_SECONDS_BETWEEN_LOOKS)
                return True
        return False

    def __next__(self) -> Item:
        while self._end is None and not self._is_closed.is_set():
            with contextlib.suppress(queue.Empty):
                item, self._end = self._waiting.get(timeout=_SECONDS_BETWEEN_LOOKS)
                if self._end is None:
                    found: Item = item
                    return found
        raise self._end or ClosedError


@contextlib.contextmanager
def ahead(items: Generator[Item], size: int = ITEMS_WAITING) -> Iterator[Iterator[Item]]:
    """Let a thread get the next items while the last ones are worked on; it begins at once."""
    taken = Handover[Item](size)

    def work() -> None:
        try:
            with contextlib.closing(items):
                for item in items:
                    if not taken.put(item):
                        return
        except BaseException as error:  # for whoever waits for it
            taken.end(error)
        else:
            taken.end()

    thread = threading.Thread(target=work, name="bnce-reading", daemon=True)
    thread.start()
    try:
        yield taken
    finally:
        taken.close()
        # What it reads may be a pipe that nobody writes to: whoever stops the command does not wait for that.
        thread.join(_PATIENCE_SECONDS)
