"""Outputs by name, wherever a command writes one.

A link stays a link, and what it leads to gets the output. What is an input or another output is refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Command, Refused, settings

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
    ["vocab", "{run}", "--add", "{words}", "--out", "{link}"],
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


# {input} is a file that the command reads and {output} another name of it, with its ending.
READ = [
    ("", ["ngram", "{input}", "--out", "{output}"]),
    ("", ["ngram", "{text}", "{place}/in*", "--out", "{output}"]),
    ("", ["ngram", "{place}", "--out", "{output}"]),
    ("", ["ngram", "{text}", "--vocab", "{input}", "--out", "{output}"]),
    ("", ["rescore", "{run}", "{input}", "--out", "{output}"]),
    ("", ["rescore", "{run}", "{lists}", "--tune", "{input}", "--save-weights", "{output}"]),
    ("", ["rescore", "{run}", "{lists}", "--refs", "{input}", "--out", "{output}"]),
    ("", ["rescore", "{run}", "{lists}", "--scores", "ctc={input}", "--out", "{output}"]),
    (".tsv", ["rescore", "{run}", "--tune", "{lists}", "--test", "{input}", "--out", "{output}"]),
    (".tsv", ["surprisal", "{run}", "{input}", "--out", "{output}"]),
    (".toml", ["interpolate", "{run}", "{run}", "--valid", "{input}", "--out", "{output}"]),
]
# {output} leads to this file of the run.
READ_RUN = [
    ("vocab.txt", ["ngram", "{text}", "--vocab", "{run}", "--out", "{output}"]),
    ("model.safetensors", ["rescore", "{run}", "{lists}", "--out", "{output}"]),
    ("config.toml", ["interpolate", "{run}", "{run}", "--valid", "{text}", "--out", "{output}.toml"]),
    ("counts.npy", ["surprisal", "{run}", "{text}", "--out", "{output}.tsv"]),
    ("metrics.jsonl", ["rescore", "{mixture}", "{lists}", "--out", "{output}"]),
]


def name_again(name: Path, file: Path) -> None:
    """Write to a file by the name that it has."""


WAYS = {"its name": name_again, "a link": Path.symlink_to, "a hard link": Path.hardlink_to}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("ending", "arguments"), READ, ids=[" ".join(arguments[:-1]) for _, arguments in READ])
def test_an_input_is_not_overwritten(
    refused: Refused, trained: Path, texts: Path, tmp_path: Path, ending: str, arguments: list[str], way: str
) -> None:
    place = tmp_path / "inputs"
    place.mkdir()
    (tmp_path / "lists").write_text("a-1 ba be\na-2 bi\n", encoding="utf-8")
    source = place / f"input{ending}"
    source.write_text("a-1 ba be\na-2 bi\n", encoding="utf-8")
    output = source if way == "its name" else tmp_path / f"output{ending}"
    WAYS[way](output, source)
    paths = {"input": source, "output": output, "place": place, "lists": tmp_path / "lists"}
    told = refused(*(one.format(run=trained, text=texts / "test.txt", **paths) for one in arguments))
    assert told == (
        f"bnce: The output '{output}' is also an input ('{source}'), which would be lost: give another output."
    )
    assert source.read_text(encoding="utf-8") == "a-1 ba be\na-2 bi\n"


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
@pytest.mark.parametrize(("name", "arguments"), READ_RUN, ids=[name for name, _ in READ_RUN])
def test_a_file_of_a_run_is_not_overwritten(
    refused: Refused,
    trained: Path,
    texts: Path,
    tmp_path: Path,
    name: str,
    arguments: list[str],
    link: Callable[[Path, Path], None],
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (tmp_path / "lists").write_text("a-1 ba be\na-2 bi\n", encoding="utf-8")
    (tmp_path / "mixture.toml").write_text('[[components]]\npath = "run"\nweight = 1.0\n', encoding="utf-8")
    before = (run / name).read_bytes()
    paths = {"run": run, "text": texts / "test.txt", "output": tmp_path / "output"}
    paths |= {"lists": tmp_path / "lists", "mixture": tmp_path / "mixture.toml"}
    filled = [one.format(**paths) for one in arguments]
    link(Path(filled[-1]), run / name)
    assert f"is also an input ('{run / name}')" in refused(*filled)
    assert (run / name).read_bytes() == before


def test_standard_input_is_not_overwritten(refused: Refused, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("ba be\n", encoding="utf-8")
    before = os.dup(0)
    try:
        with open(text, encoding="utf-8") as file:
            os.dup2(file.fileno(), 0)
        assert "is also an input ('-')" in refused("ngram", "-", "--out", text)
    finally:
        os.dup2(before, 0)
        os.close(before)
    assert text.read_text(encoding="utf-8") == "ba be\n"


def test_a_shard_is_not_overwritten(refused: Refused, trained: Path, tmp_path: Path) -> None:
    """Neither by a link to it nor by the directory that it is in, whatever that is called."""
    shards = tmp_path / "shards"
    shards.mkdir()
    shard = shards / "a.jsonl"
    shard.write_text('{"text": "ba be"}\n', encoding="utf-8")
    (tmp_path / "same").symlink_to(shards)
    assert "or this in it" in refused("filter", trained, shard, "--out", tmp_path / "same")
    assert "is inside the source" in refused("filter", trained, shards, "--out", tmp_path / "same")
    for link in (Path.symlink_to, Path.hardlink_to):
        out = tmp_path / link.__name__
        out.mkdir()
        link(out / "a.jsonl", shard)
        assert f"is also an input ('{shard}')" in refused("filter", trained, shard, "--out", out)
    assert shard.read_text(encoding="utf-8") == '{"text": "ba be"}\n'


def test_outputs_do_not_overwrite_each_other(refused: Refused, bnce: Command, trained: Path, tmp_path: Path) -> None:
    lists = tmp_path / "lists"
    lists.write_text("a-1 ba be\na-2 bi\n", encoding="utf-8")
    refs = tmp_path / "refs"
    refs.write_text("a ba be\n", encoding="utf-8")
    (tmp_path / "link").symlink_to("both")
    rescore = ["rescore", trained, lists, "--tune", refs]
    for out in ("both", "link"):
        told = refused(*rescore, "--out", tmp_path / out, "--save-weights", tmp_path / "both")
        assert told.endswith("are the same file: give two names.")
    assert not (tmp_path / "both").exists()
    assert bnce(*rescore, "--out", os.devnull, "--save-weights", os.devnull).status == 0  # which keeps nothing
