"""The one error a user can cause: what it says, and how it names arguments."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import typer

import bnce
from bnce import UserError
from bnce.cli import app
from bnce.errors import argument, naming_options, unknown_name
from bnce.recipes import load_recipe

PACKAGE = Path(bnce.__file__).parent


def test_it_is_a_value_error() -> None:
    assert issubclass(UserError, ValueError)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("lsmt", " Did you mean 'lstm'?"),
        ("relu_lstm", " Did you mean 'relu-lstm'?"),
        ("LSTM", " Did you mean 'lstm'?"),
        ("transformer", ""),
        ("", ""),
    ],
)
def test_unknown_name_lists_the_known_and_suggests_the_near_one(name: str, hint: str) -> None:
    error = unknown_name("model", name, iter(["rnn", "lstm", "relu-lstm"]))
    assert isinstance(error, UserError)
    assert str(error) == f"Unknown model '{name}': choose one of rnn, lstm, relu-lstm.{hint}"


@pytest.mark.parametrize(
    ("name", "value", "in_python", "on_the_command_line"),
    [
        ("max_connections", None, "max_connections", "--max-connections"),
        ("settings", None, "settings", "--set"),
        ("source", None, "source", "--from"),
        ("errors", "replace", "errors='replace'", "--errors replace"),
        ("num_workers", 1, "num_workers=1", "--workers 1"),
        ("vocabulary_file", Path("run/vocab.txt"), "vocabulary_file='run/vocab.txt'", "--vocab run/vocab.txt"),
        ("keep_models", False, "keep_models=False", "--no-keep-models"),
        ("normalised", True, "normalised=True", "--mode normalised"),
    ],
)
def test_an_argument_is_named_as_it_is_given(
    name: str, value: object, in_python: str, on_the_command_line: str
) -> None:
    assert argument(name, value) == in_python
    with naming_options():
        assert argument(name, value) == on_the_command_line
    assert argument(name, value) == in_python


def test_a_library_message_in_both_spellings() -> None:
    with pytest.raises(UserError, match=r"^settings received 'epochs': write it as section"):
        load_recipe("small", settings=["epochs"])
    with naming_options(), pytest.raises(UserError, match=r"^--set received 'epochs': write it as section"):
        load_recipe("small", settings=["epochs"])


def test_options_exist_as_messages_name_them() -> None:
    """What a message tells somebody to type is an option of some command."""
    options = {
        option
        for command in typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    named = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "argument":
                given = [constant.value for constant in node.args if isinstance(constant, ast.Constant)]
                if given and isinstance(given[0], str):
                    with naming_options():
                        named.add(argument(*given).split(" ")[0])
    assert len(named) > 20
    assert named <= options


def test_messages_name_no_options_outside_the_command_line() -> None:
    """A Python user has no options; a whole command, such as 'bnce evaluate --save', anybody can type."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        if place.parts[0] in ("cli", "errors.py") or place.name in ("style.py", "resuming.py", "advice.py"):
            continue  # the command line itself; the colours of pages; the commands that resume a run
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        silent = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
                text = re.sub(r"'bnce [^']*'|--loss:|--short=12", "", node.value)
                found += [f"{place}: {option}" for option in re.findall(r"--[a-z][a-z-]+", text)]
    assert found == []
