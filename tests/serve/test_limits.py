"""Limits have bounds themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Refused


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--body-seconds", 0.0, "a number from 0.1 to 3,600."),
        ("--body-seconds", float("nan"), "a finite number."),
        ("--request-seconds", 3600.5, "a number from 0.1 to 3,600."),
        ("--request-seconds", float("inf"), "a finite number."),
        ("--max-wait-ms", 10_000.5, "a number from 0 to 10,000."),
        ("--max-wait-ms", -1.0, "a number from 0 to 10,000."),
        ("--max-words", 10**18, "a number from 1 to 10,000,000."),
        ("--max-body-bytes", 2**26 + 1, "a number from 1 to 67,108,864."),
    ],
)
def test_a_limit_is_within_its_bounds(refused: Refused, trained: Path, option: str, value: float, told: str) -> None:
    assert refused("serve", trained, f"{option}={value}") == f"bnce: {option} is {value}: give {told}"


def test_a_wait_leaves_time_for_an_answer(refused: Refused, trained: Path) -> None:
    told = refused("serve", trained, "--max-wait-ms", 2000, "--request-seconds", 2)
    assert "--max-wait-ms is 2000 and --request-seconds 2, so every request would end" in told
