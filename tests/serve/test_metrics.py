"""Counts, as Prometheus reads them."""

from __future__ import annotations

import re

from bnce.serve.metrics import Histogram, Metrics, resident_memory_bytes


def test_a_histogram_counts_up_to_its_bounds() -> None:
    histogram = Histogram((1, 2.5))
    for value in (0.5, 1, 2, 3, 100):
        histogram.observe(value)
    assert list(histogram.lines("x")) == [
        'x_bucket{le="1"} 2',
        'x_bucket{le="2.5"} 3',
        'x_bucket{le="+Inf"} 5',
        "x_sum 106.5",
        "x_count 5",
    ]
    assert next(histogram.lines("x", 'a="b"')) == 'x_bucket{a="b",le="1"} 2'


def test_every_line_is_a_comment_or_a_sample() -> None:
    metrics = Metrics()
    metrics.count_request("/score", 200, 0.02)
    metrics.count_request("/score", 413, 0.0001)
    lines = metrics.render(num_waiting=7).splitlines()
    sample = re.compile(r'[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [0-9.e+-]+')
    assert all(sample.fullmatch(line) or re.match(r"# (HELP|TYPE) [a-z_]+ ", line) for line in lines)
    assert 'bnce_requests_total{endpoint="/score",status="413"} 1' in lines
    assert 'bnce_request_seconds_bucket{endpoint="/score",le="0.025"} 2' in lines
    assert "bnce_waiting_requests 7" in lines
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))


def test_memory_is_that_of_this_process() -> None:
    before = resident_memory_bytes()
    held = bytearray(b"x" * 2**26)
    assert 2**25 < resident_memory_bytes() - before < 2**28
    assert len(held) == 2**26
