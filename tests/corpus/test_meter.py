"""Progress counts what is done, not what is only read."""

from __future__ import annotations

from bnce.corpus.meter import Meter

Steps = list[tuple[int, int]]


def test_blocks_count_when_they_are_numbered() -> None:
    steps: Steps = []
    meter = Meter(lambda *step: steps.append(step), 100)

    def blocks() -> list[int]:
        return [40, 60]

    def read() -> object:
        for num_bytes in blocks():
            meter.read(num_bytes)
            yield num_bytes

    watched = list(meter.watch(read()))
    assert watched == blocks()
    assert steps == [], "all is read, and nothing done"
    meter.numbered()
    meter.numbered()
    meter.encoded(0.5)
    meter.encoded(1.0)
    assert steps == [(32, 100), (80, 100), (90, 100), (100, 100)]


def test_a_pipe_has_no_total() -> None:
    steps: Steps = []
    meter = Meter(lambda *step: steps.append(step), 0)
    meter.read(10)
    meter.encoded(1.0)
    assert steps == [(10, 0)]


def test_a_file_may_grow() -> None:
    steps: Steps = []
    meter = Meter(lambda *step: steps.append(step), 10)
    meter.read(20)
    meter.encoded(1.0)
    assert steps == [(20, 20)]
