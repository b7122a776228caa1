"""The help of every command as one Markdown page, from the program itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.main import get_command

from bnce.cli import app

_TITLE = "# Commands"
_INTRODUCTION = """\
This page is made from the program: it is what `bnce COMMAND --help` prints. [usage.md](usage.md) says more about each
command. Every command also has `-h` and `--help`.
"""
_NOTE = re.compile(r"\s*\[((?:default: .*|required))\]$", re.DOTALL)
_BLOCK_MARK = "\b"  # typer's mark of a paragraph whose lines stay as they are


class _Sections:
    """Takes what a command writes to a formatter: the names of sections, and pairs of a name and its meaning."""

    def __init__(self) -> None:
        self.pairs: dict[str, list[tuple[str, str]]] = {}
        self._name = ""

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        self._name = name
        yield

    def write_dl(self, rows: list[tuple[str, str]]) -> None:
        self.pairs.setdefault(self._name, []).extend(rows)


def command_names() -> list[str]:
    """Name all commands in the order of `bnce --help`."""
    return list(_group().commands)


def commands_page() -> str:
    """Write the page."""
    group = _group()
    context = typer.Context(group, info_name="bnce")
    parts = [_TITLE, _INTRODUCTION, _list_of_commands(group)]
    parts += [_command(command, typer.Context(command, context, name)) for name, command in group.commands.items()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _group() -> Any:
    return get_command(app)


def _list_of_commands(group: Any) -> str:
    lines = ["| command | what it does |", "|---|---|"]
    for name, command in group.commands.items():
        lines.append(f"| [{name}](#bnce-{name}) | {_plain(command.get_short_help_str(200))} |")
    return "\n".join(lines)


def _command(command: Any, context: Any) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"## {context.command_path}", f"```text\n{context.command_path} {usage}\n```"]
    parts += _description(command.help or "")
    sections = _Sections()
    command.format_options(context, sections)
    for name, pairs in sections.pairs.items():
        rows = [_definition(*pair) for pair in pairs if not pair[0].endswith("--help")]
        parts += [f"**{name}**", *rows]
    return "\n\n".join(parts)


def _description(text: str) -> Iterator[str]:
    """Give the paragraphs of a command's help; those whose lines stay as they are, such as examples, as code."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if not paragraph.startswith(_BLOCK_MARK):
            yield _plain(" ".join(paragraph.split()))
            continue
        lines = paragraph.removeprefix(_BLOCK_MARK).strip("\n").splitlines()
        if lines[0].strip().endswith(":"):
            yield f"**{lines.pop(0).strip().removesuffix(':')}**"
        margin = min(len(line) - len(line.lstrip()) for line in lines)
        language = "sh" if lines[0].strip().startswith("bnce ") else "text"
        yield "\n".join([f"```{language}", *(line[margin:] for line in lines), "```"])


def _definition(name: str, meaning: str) -> str:
    """Write an option: its names and value as code, then what it does, then its default."""
    meaning = " ".join(meaning.split())
    note = _NOTE.search(meaning)
    text = _plain(_NOTE.sub("", meaning))
    if note is not None:
        told = note[1] if note[1] == "required" else note[1].removeprefix("default: ")
        text += " *Required.*" if told == "required" else f" Default: *{_plain(told)}*."
    return f"`{name}`\n:   {text}"


def _plain(text: str) -> str:
    """Keep Markdown from reading marks into plain text."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]{}#|])", r"\\\1", text)
