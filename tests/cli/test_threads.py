"""The number of CPU threads wherever something computes: OMP_NUM_THREADS, or one per core."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Command

from bnce import UserError


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "{run}"],
        ["score", "{run}", "{text}"],
        ["rescore", "{run}", "{lists}"],
        ["interpolate", "{run}", "{run}", "--valid", "{text}"],
        ["generate", "{run}"],
        ["vocab", "{run}", "--add", "{words}", "--out", "{out}"],
        ["export", "{run}", "--to", "safetensors", "--out", "{out}"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_threads_share_the_cores(
    bnce: Command, trained: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    def stop() -> None:
        raise UserError("looked at")

    monkeypatch.setattr("bnce.machine.threads.use_threads", stop)
    (tmp_path / "lists").write_text("a-1 ba\na-2 be\n", encoding="utf-8")
    (tmp_path / "words").write_text("ba\n", encoding="utf-8")
    paths = {
        "{run}": trained,
        "{text}": texts / "test.txt",
        "{lists}": tmp_path / "lists",
        "{words}": tmp_path / "words",
        "{out}": tmp_path / "out",
    }
    told = bnce(*(paths.get(argument, argument) for argument in arguments))
    assert told.stderr.endswith("bnce: looked at\n")
