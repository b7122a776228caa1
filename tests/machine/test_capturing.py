"""Garbage while a graph is captured; what is captured itself needs a GPU (tests/gpu)."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable

import pytest
import torch

from bnce.machine.capturing import SideStream


class Cyclic:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], object]:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: contextlib.nullcontext())
    return SideStream(torch.device("cuda")).capture


def test_garbage_goes_before_and_not_within(capture: Callable[[Callable[[], object]], object]) -> None:
    gone = weakref.ref(Cyclic())

    def work() -> None:
        assert gone() is None
        assert not gc.isenabled()
        kept = weakref.ref(Cyclic())
        # As many objects as would make Python look for garbage.
        _ = [[number] for number in range(10_000)]
        assert kept() is not None

    capture(work)
    assert gc.isenabled()


def test_as_it_was_after_an_error_and_where_it_was_off(capture: Callable[[Callable[[], object]], object]) -> None:
    with pytest.raises(ZeroDivisionError):
        capture(lambda: 1 / 0)
    assert gc.isenabled()
    gc.disable()
    try:
        capture(lambda: None)
        assert not gc.isenabled()
    finally:
        gc.enable()
