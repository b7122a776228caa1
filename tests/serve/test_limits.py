"""Limits have bounds themselves."""

from __future__ import annotations

import re

import pytest

from bnce import UserError
from bnce.serve.limits import Limits


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("body_seconds", 0.0, "body_seconds is 0.0: give a number from 0.1 to 3,600."),
        ("body_seconds", float("nan"), "body_seconds is nan: give a number from 0.1 to 3,600."),
        ("request_seconds", float("inf"), "request_seconds is inf: give a number from 0.1 to 3,600."),
        ("max_wait_ms", float("inf"), "max_wait_ms is inf: give a number from 0 to 10,000."),
        ("max_wait_ms", -1.0, "max_wait_ms is -1.0: give a number from 0 to 10,000."),
        ("max_words", 10**30, f"max_words is {10**30}: give a number from 1 to 10,000,000."),
        ("max_body_bytes", 2**26 + 1, "max_body_bytes is 67108865: give a number from 1 to 67,108,864."),
    ],
)
def test_a_limit_is_within_its_bounds(name: str, value: float, told: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(told)}$"):
        Limits(**{name: value})  # type: ignore[arg-type]


def test_a_wait_leaves_time_for_an_answer() -> None:
    with pytest.raises(UserError, match="max_wait_ms is 2000 and request_seconds 2, so every request would end"):
        Limits(max_wait_ms=2000, request_seconds=2)
