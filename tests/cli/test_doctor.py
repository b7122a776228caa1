"""`bnce doctor`: a status and a line for everything looked at."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from bnce import doctor

from .conftest import Command

Refused = Callable[..., str]


@pytest.fixture(autouse=True)
def _roomy_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be space, whatever machine this is."""
    monkeypatch.setattr(doctor, "_disk", lambda device: doctor.Finding("disk", True, "roomy"))


def test_all_is_well(bnce: Command) -> None:
    record = bnce("doctor", "--device", "cpu", "--json").json
    assert record["well"] is True
    assert [finding["name"] for finding in record["findings"]] == [
        "versions", "device", "disk", "loss softmax", "loss nce", "loss snce", "loss bnce", "loss chunk-bnce",
        "loss adaptive bnce", "noise sampling",
    ]  # fmt: skip
    plain = bnce("doctor", "--device", "cpu")
    assert plain.status == 0
    assert all(line.startswith("well ") for line in plain.stdout.splitlines())


def test_something_is_wrong(bnce: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: object) -> None:
        raise RuntimeError("no [/such] thing")

    monkeypatch.setattr(doctor, "_sampling", broken)
    outcome = bnce("doctor", "--device", "cpu", "--json")
    assert outcome.status == 1
    record = json.loads(outcome.stdout)
    assert record["well"] is False
    assert record["findings"][-1]["detail"] == "RuntimeError: no [/such] thing"
    plain = bnce("doctor", "--device", "cpu")
    assert plain.status == 1
    assert plain.stdout.splitlines()[-1] == "wrong broken: RuntimeError: no [/such] thing"


def test_an_unknown_device(refused: Refused) -> None:
    assert "Unknown device 'x'" in refused("doctor", "--device", "x")
