"""Records: found by name, added by one call, and never guessed at."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bnce
from bnce import BODIES, LOSSES, OPTIMISERS, UserError

USAGE = Path(__file__).parents[2] / "docs" / "usage.md"
PACKAGE = Path(bnce.__file__).parent
ALL = [kind for registry in (BODIES, LOSSES, OPTIMISERS) for kind in registry]
Registry = type(OPTIMISERS)


def make(name: str, built_by: str = "math:sqrt") -> Any:
    sgd = OPTIMISERS.find("sgd")
    return dataclasses.replace(sgd, name=name, shown=name.title(), help="for a test", built_by=built_by)


def test_kinds_are_found_by_name_and_keep_their_order() -> None:
    registry = Registry("colour", make("red"), make("blue"))
    registry.register(make("deep-green"))
    assert registry.names == ("red", "blue", "deep-green")
    assert registry.find("blue").shown == "Blue"
    assert registry.find("blue").load()(9) == 3
    assert [registry.place(name) for name in registry.names] == [0, 1, 2]
    assert "blue" in registry
    assert "grey" not in registry
    assert len(registry) == 3
    assert repr(registry) == "<colour: red, blue, deep-green>"
    assert registry.help == "red (for a test), blue (for a test), deep-green (for a test)"
    with pytest.raises(UserError) as caught:
        registry.find("blu")
    assert str(caught.value) == "Unknown colour 'blu': choose one of red, blue, deep-green. Did you mean 'blue'?"
    with pytest.raises(UserError, match="Unknown colour 'grey'"):
        registry.place("grey")


def test_a_name_is_given_once() -> None:
    registry = Registry("colour", make("red"))
    with pytest.raises(UserError, match="There is a colour 'red' already: give yours another name"):
        registry.register(make("red"))


@pytest.mark.parametrize("name", ["", "Red", "red,blue", "red blue", "../red", "-red", "all"])
def test_names_that_lists_and_directories_cannot_hold(name: str) -> None:
    with pytest.raises(UserError, match=f"A colour cannot be called '{name}': use lower-case letters"):
        Registry("colour", make(name))


@pytest.mark.parametrize("place", ["no.such.module:name", "math:no_such_name", "math", ":sqrt"])
def test_a_record_that_leads_nowhere(place: str) -> None:
    with pytest.raises(UserError, match=f"Cannot import '{place}' .*: write package.module:name into the record"):
        make("red", place).load()


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_every_record_leads_to_what_builds_it(kind: Any) -> None:
    assert callable(kind.load())
    assert kind.help == kind.help.strip()
    assert not kind.help.endswith(".")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_the_manual_says_the_same_as_the_help(kind: Any) -> None:
    assert f"| `{kind.name}` | {kind.help} |" in USAGE.read_text(encoding="utf-8").splitlines()


def test_records_need_nothing_but_python() -> None:
    check = (
        "import sys, bnce.kinds.bodies, bnce.kinds.losses, bnce.kinds.optimisers\n"
        "print([name for name in ('torch', 'numpy', 'typer', 'rich') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def compared_names(source: str) -> list[str]:
    """List the names of kinds that a file compares something with, or looks for one in."""
    names = {kind.name for kind in ALL}
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            constants = [inner for inner in ast.walk(node) if isinstance(inner, ast.Constant)]
            found += [constant.value for constant in constants if constant.value in names]
    return found


def test_nobody_compares_names() -> None:
    """But the code that is shipped inside exports, which cannot read our records."""
    shipped = PACKAGE / "export" / "modeling_bnce.py"
    found = {path.name: compared_names(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    assert {name: names for name, names in found.items() if names} == {shipped.name: ["ffnn", "transformer"]}
    assert compared_names('if config.loss.name != "softmax": pass') == ["softmax"]
    assert compared_names('x = name in ("nce", "snce")') == ["nce", "snce"]
