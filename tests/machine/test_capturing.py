"""Garbage while a graph is captured; what is captured itself needs a GPU (tests/gpu)."""

from __future__ import annotations

import gc
import weakref

import pytest

from bnce.machine.capturing import without_garbage_collection


class Cyclic:
    def __init__(self) -> None:
        self.itself = self


def test_garbage_goes_before_and_not_within() -> None:
    gone = weakref.ref(Cyclic())
    with without_garbage_collection():
        assert gone() is None
        assert not gc.isenabled()
        kept = weakref.ref(Cyclic())
        # As many objects as would make Python look for garbage.
        _ = [[number] for number in range(10_000)]
        assert kept() is not None
    assert gc.isenabled()


def test_as_it_was_after_an_error_and_where_it_was_off() -> None:
    with pytest.raises(ValueError, match="inside"), without_garbage_collection():
        raise ValueError("inside")
    assert gc.isenabled()
    gc.disable()
    try:
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
