"""Numbers are printed as the paper prints them, also where rounding changes the unit."""

from __future__ import annotations

import pytest

from bnce.report import numbers


@pytest.mark.parametrize(
    ("value", "shown"),
    [(812, "812"), (999.7, "1.0K"), (8_400, "8.4K"), (35_100, "35.1K"), (999_949, "999.9K"),
     (999_960, "1.00M"), (5.87e6, "5.87M"), (9.996e6, "10.0M"), (12.3e6, "12.3M"), (0.0, "0"), (None, "—")],
)  # fmt: skip
def test_speed(value, shown):
    assert numbers.speed(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(12, "12"), (12_345, "12.3K"), (999_960, "1.0M"), (48_800_000, "48.8M"), (66_000_000, "66.0M"),
     (880_000_000, "0.88B"), (1_590_000_000, "1.59B"), (None, "—")],
)  # fmt: skip
def test_parameters(value, shown):
    assert numbers.parameters(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(110.24, "110.2"), (59.0, "59.0"), (123_456.0, "1.23e+05"), (None, "—")])
def test_perplexity(value, shown):
    assert numbers.perplexity(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "0.0 s"), (12.34, "12.3 s"), (59.96, "1 min 00 s"), (750, "12 min 30 s"), (3599.7, "1 h 00 min"),
     (11_100, "3 h 05 min"), (86_399, "1 d 00 h"), (183_600, "2 d 03 h"), (None, "—")],
)  # fmt: skip
def test_duration(seconds, shown):
    assert numbers.duration(seconds) == shown


def test_the_rest():
    assert numbers.ratio(4.178) == "4.18"
    assert numbers.ratio(24.31) == "24.3"
    assert numbers.ratio(None) == "—"
    assert numbers.spread(8.981, 0.306) == "8.98 ± 0.31"
    assert numbers.spread(8.981, None) == "8.98"
    assert numbers.spread(None, 0.3) == "—"
    assert [numbers.epochs(value) for value in (20.0, 1.5, 0.041, 0.0, None)] == [
        "20",
        "1.5",
        "0.04",
        "0",
        "—",
    ]
    assert numbers.share(0.023) == "2.30%"
    assert numbers.memory(512 * 2**20) == "512 MiB"
    assert numbers.memory(3.42 * 2**30) == "3.42 GiB"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(60, "60"), (0.25, "0.25"), (1000, "1K"), (1500, "1.5K"), (2e8, "200M"), (1.2e9, "1.2B")],
)
def test_axis(value, shown):
    assert numbers.axis(value) == shown
