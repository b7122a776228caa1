"""The simulation of many processes: its arithmetic by hand, and what the docs quote of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import scaling

ROOT = Path(__file__).parents[1]
LINK = scaling.Link("a link", 1e6, 1e-3)
COMPUTE = 10.0


def test_bytes_are_those_of_the_formula() -> None:
    """Row numbers have four bytes; rows go and gradients come back; the body goes around a ring in float32."""
    for number_bytes in (4, 2):
        sent = scaling.sent_bytes(num_columns=7, num_body=1000, R=4, C=10, number_bytes=number_bytes)
        assert sent.rows == 4 * 10 * 3 + 2 * (number_bytes * 10 * 3 * 7)
        assert sent.body == 2 * 4 * 1000 * 3 / 4


def test_one_process_sends_nothing_and_takes_the_measured_time() -> None:
    sent = scaling.sent_bytes(num_columns=7, num_body=1000, R=1, C=10, number_bytes=4)
    for hidden in (False, True):
        assert scaling.step_seconds(COMPUTE, sent, LINK, 1, hidden=hidden) == COMPUTE


def test_a_hidden_body_takes_only_what_it_lasts_longer() -> None:
    latency = scaling.NUM_COLLECTIVES * 1e-3 * 3  # eight processes: three doublings
    short, long = scaling.Sent(rows=2e6, body=4e6), scaling.Sent(rows=2e6, body=15e6)
    times = [scaling.step_seconds(COMPUTE, sent, LINK, 8, hidden=hidden) for sent in (short, long) for hidden in (0, 1)]
    assert times == pytest.approx([16 + latency, 12 + latency, 27 + latency, 17 + latency])


def test_room_for_rows_covers_the_different_words_and_shrinks_with_processes() -> None:
    alone, of_four = (scaling.capacity(2000, 500, R) for R in (1, 4))
    assert alone / 4 < of_four < alone < 500


def test_docs_quote_what_was_computed() -> None:
    """Every row of the page's table is one of the result file, and both say what it is."""
    written = (ROOT / "benchmarks" / "results" / "scaling.md").read_text(encoding="utf-8")
    told = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^\| (?:NVLink|Ethernet),.*\|$", told, re.MULTILINE)
    assert len(quoted) >= 8
    assert set(quoted) <= set(written.splitlines())
    for text in (written, told):
        assert "simulation, not a measurement" in " ".join(text.split())
