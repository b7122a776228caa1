"""A count of the copies that commands start."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bnce.machine.copies import share_machine


@pytest.fixture
def copies_started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the numbers of copies that commands start; how many of them are in time to find work is chance."""
    started: list[int] = []

    def share_and_count(gpus: Sequence[str], num_copies: int) -> list[dict[str, str]]:
        started.append(num_copies)
        return share_machine(gpus, num_copies)

    monkeypatch.setattr("bnce.cli.copies.share_machine", share_and_count)
    return started
