"""Outputs by name, wherever a command writes one: a link stays a link, and what it leads to gets the output."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Command, settings

# {link} leads to a file that is there already, or to an empty directory.
FILES = [
    ["rescore", "{run}", "{lists}", "--out", "{link}"],
    ["rescore", "{run}", "{lists}", "--out", "{link}.tsv"],
    ["rescore", "{run}", "{lists}", "--tune", "{refs}", "--save-weights", "{link}"],
    ["surprisal", "{run}", "{text}", "--out", "{link}.tsv"],
    ["ngram", "{text}", "--vocab", "{run}", "--out", "{link}"],
    ["interpolate", "{run}", "{run}", "--valid", "{text}", "--out", "{link}.toml"],
]
DIRECTORIES = [
    ["prepare", "{text}", "--valid", "{text}", "--test", "{text}", "--workers", "1", "--out", "{link}"],
    ["train", "wiki", "--corpus", "{corpus}", *settings(), "--out", "{link}"],
    ["vocab", "{run}", "--drop", "{words}", "--out", "{link}"],
    ["export", "{run}", "--to", "safetensors", "--out", "{link}"],
]


@pytest.mark.parametrize("arguments", [*FILES, *DIRECTORIES], ids=lambda arguments: f"{arguments[0]} {arguments[-2]}")
def test_a_link_is_followed(
    bnce: Command, trained: Path, corpus: Path, texts: Path, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "lists").write_text("a-1 ba be\na-2 bi\n", encoding="utf-8")
    (tmp_path / "refs").write_text("a ba be\n", encoding="utf-8")
    (tmp_path / "words").write_text("ba\n", encoding="utf-8")
    target = tmp_path / "elsewhere" / "target"
    target.parent.mkdir()
    if arguments in FILES:
        target.write_text("old", encoding="utf-8")
    else:
        target.mkdir()
    paths = {name: tmp_path / name for name in ("lists", "refs", "words", "link")}
    paths |= {"run": trained, "corpus": corpus, "text": texts / "test.txt"}
    filled = [argument.format(**paths) if argument[0] == "{" else argument for argument in arguments]
    (link,) = (Path(argument) for argument in filled if argument.startswith(str(tmp_path / "link")))
    link.symlink_to(target)
    outcome = bnce(*filled)
    assert outcome.status == 0, outcome.stderr
    assert link.is_symlink()
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    if arguments in FILES:
        assert len(target.read_bytes()) > len("old")
    else:
        assert any(target.iterdir())
