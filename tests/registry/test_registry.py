"""Records: found by name, added by one call, and never guessed at."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bnce
from bnce import LOSSES, MODELS, OPTIMISERS, UserError
from bnce.registry import Loss, find, load, register

USAGE = Path(__file__).parents[2] / "docs" / "usage.md"
PACKAGE = Path(bnce.__file__).parent
ALL = {**LOSSES, **MODELS, **OPTIMISERS}


def test_records_are_found_by_name() -> None:
    assert find(Loss, "bnce") is bnce.BatchNce
    for name in ("bnec", 3, None, ["bnce"]):
        with pytest.raises(UserError, match=r"^Unknown loss .*: choose one of softmax, "):
            find(Loss, name)


@pytest.mark.usefixtures("losses_of_its_own")
@pytest.mark.parametrize("name", ["", "Red", "red,blue", "red blue", "../red", "-red", "all", "bnce"])
def test_names_that_lists_and_directories_cannot_hold(name: str) -> None:
    class Red(Loss, tag=name, frozen=True):
        """red: for a test"""

    with pytest.raises(UserError, match=f"A loss cannot be called '{name}': give it a new tag, of lower-case letters"):
        register(Red)


@pytest.mark.parametrize("name", ALL)
def test_every_record_leads_to_what_computes_it(name: str) -> None:
    record = ALL[name]
    assert record.title
    assert record.help == record.help.strip()
    assert not record.help.endswith(".")
    assert callable(load(record.code))


@pytest.mark.parametrize("name", ALL)
def test_the_manual_says_the_same_as_the_help(name: str) -> None:
    assert f"| `{name}` | {ALL[name].help} |" in USAGE.read_text(encoding="utf-8").splitlines()


def test_records_need_neither_torch_nor_the_command_line() -> None:
    check = (
        "import sys, bnce.registry, bnce.settings\n"
        "print([name for name in ('torch', 'numpy', 'typer', 'rich', 'tomli_w') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def compared_names(source: str) -> list[str]:
    """List the names of records that a file compares something with, or looks for one in."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            constants = [inner for inner in ast.walk(node) if isinstance(inner, ast.Constant)]
            found += [constant.value for constant in constants if constant.value in ALL]
    return found


def test_nobody_compares_names() -> None:
    """But the code that is shipped inside exports, which cannot read our records."""
    shipped = PACKAGE / "export" / "modeling_bnce.py"
    found: dict[str, Any] = {}
    for path in PACKAGE.rglob("*.py"):
        if names := compared_names(path.read_text(encoding="utf-8")):
            found[path.name] = names
    assert found == {shipped.name: ["ffnn", "transformer", "rnn"]}
    assert compared_names('if config.loss.name != "softmax": pass') == ["softmax"]
    assert compared_names('x = name in ("nce", "snce")') == ["nce", "snce"]
