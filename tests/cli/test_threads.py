"""`--threads` wherever something computes."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Command

from bnce import UserError, cli

NAMES = [command.name or getattr(command.callback, "__name__", "") for command in cli.app.registered_commands]
# They read, count and print without a network; prepare has --workers.
WITHOUT_A_NETWORK = {"fetch", "prepare", "ngram", "info", "compare"}


@pytest.mark.parametrize("name", NAMES)
def test_every_command_that_computes_takes_threads(bnce: Command, name: str) -> None:
    assert ("--threads N" in bnce(name, "--help").stdout) == (name not in WITHOUT_A_NETWORK)


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "{run}"],
        ["score", "{run}", "{text}"],
        ["rescore", "{run}", "{lists}"],
        ["interpolate", "{run}", "{run}", "--valid", "{text}"],
        ["generate", "{run}"],
        ["vocab", "{run}", "--drop", "{words}", "--out", "{out}"],
        ["export", "{run}", "--to", "safetensors", "--out", "{out}"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_number_that_is_asked_for_is_used(
    bnce: Command, trained: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    def stop(number: int) -> None:
        raise UserError(f"{number} threads")

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
    told = bnce(*(paths.get(argument, argument) for argument in arguments), "--threads", 3)
    assert told.stderr.endswith("bnce: 3 threads\n")
