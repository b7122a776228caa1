"""Items from thread to thread: in order, only so many at a time, and with an end that both sides hear of."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator

import pytest

from bnce.filtering.handover import ClosedError, Handover, ahead


def test_items_come_in_order_and_end() -> None:
    with ahead(item for item in range(100)) as items:
        assert list(items) == list(range(100))
        assert next(items, None) is None, "also when asked again"


def test_a_thread_begins_at_once_and_is_never_far_ahead() -> None:
    made, is_far = itertools.count(), threading.Event()

    def make() -> Generator[int]:
        for item in made:
            if item == 3:
                is_far.set()
            yield item

    with ahead(make(), 3) as items:
        assert is_far.wait(30), "before anybody asks"
        assert list(itertools.islice(items, 10)) == list(range(10))
    assert next(made) <= 15
    assert not [thread for thread in threading.enumerate() if thread.name == "bnce-reading"]


def test_an_error_comes_after_the_items_before_it() -> None:
    def make() -> Generator[float]:
        yield from (1 / number for number in (1, 2, 0))

    with ahead(make()) as items:
        assert [next(items), next(items)] == [1, 0.5]
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                next(items)


def test_either_side_can_give_up() -> None:
    items = Handover[int](1)
    assert items.put(1)
    threading.Timer(0.2, items.close).start()
    assert not items.put(2), "while it waits for room"
    with pytest.raises(ClosedError):
        next(items)
    items = Handover[int]()
    threading.Timer(0.2, items.close).start()
    with pytest.raises(ClosedError):
        next(items)  # while it waits for an item
    items.end()
