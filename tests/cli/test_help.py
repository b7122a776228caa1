"""`--help` in 80 columns, for a tired reader; and what a shell completes, without loading PyTorch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from command import Command
from typer.models import OptionInfo

from bnce import LOSSES, MODELS, cli

NAMES = [command.name or getattr(command.callback, "__name__", "") for command in cli.app.registered_commands]
RECIPES = {"demo", "ltcb", "news", "obwb", "small", "transformer", "wiki"}
# What typer calls the types of values; a reader wants the value's name.
TYPES = re.compile(r" (?:<\w.*>|INTEGER|FLOAT|PATH)|list\[|\{[A-Z]")


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def entries(page: str) -> dict[str, str]:
    """Read the options of a page: their names with their values, and what is said of each."""
    found: dict[str, str] = {}
    name = ""
    for line in page.splitlines():
        if match := re.match(r"  (-\S.*?)(?:\s{2,}(.*))?$", line):
            name = match[1]
            found[name] = match[2] or ""
        elif name and line.startswith("     "):
            found[name] = f"{found[name]} {line.strip()}".strip()
        else:
            name = ""
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_page_fits_80_columns_and_says_what_everything_is(bnce: Command, name: str) -> None:
    page = bnce(name, "--help").stdout
    assert max(map(len, page.splitlines())) <= 80
    assert f"Usage: bnce {name} [OPTIONS]" in page
    assert "[bold]" not in page
    # An example is one line, or goes on after a backslash.
    block = page.split("Examples:\n")[1].split("\n\n")[0].splitlines()
    for before, line in zip(["", *block], block, strict=False):
        assert before.endswith("\\") or re.match(r"    (?:bnce|curl|echo|torchrun) ", line), line
    options = entries(page)
    assert {"--json", "-h, --help"} <= set(options)
    for option, text in options.items():
        words = re.sub(r"\s*\[(?:default|required|env var)[^]]*\]$", "", text)
        assert not TYPES.search(option), option
        assert words.endswith("."), f"{option}: {text}"
        assert words[0].isupper() or words.split(":")[0] in option or re.match(r"\w+: ", words), f"{option}: {text}"
        assert not re.search(r"<=?x|x>=?", text), f"{option}: {text}"


def test_no_option_gets_its_name_from_its_metavar() -> None:
    """Typer 0.27 takes a metavar that is the parameter's name in capitals for the option's name: --MODE."""
    for command in cli.app.registered_commands:
        assert command.callback is not None
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            for option in getattr(hint, "__metadata__", ()):
                if isinstance(option, OptionInfo) and option.metavar == name.upper():
                    # Until typer has read it, a first name stands where other styles have the default.
                    assert option.default == f"--{name}", f"{command.callback.__name__}: name --{name} in typer.Option"


def test_the_list_of_commands_has_whole_sentences(bnce: Command) -> None:
    page = bnce("--help").stdout
    assert max(map(len, page.splitlines())) <= 80
    listed = dict(re.findall(r"^  ([a-z]+) {2,}(\S.*)$", page.split("Commands:\n")[1], flags=re.MULTILINE))
    assert set(listed) == set(NAMES)
    for name, sentence in listed.items():
        assert sentence.endswith(".") and not sentence.endswith("..."), f"{name}: {sentence}"  # noqa: PT018


def test_help_names_every_recipe(bnce: Command) -> None:
    page = bnce("train", "--help").stdout
    recipes = re.findall(r"[a-z]+", page.split("Arguments:\n")[1].split("Options:")[0])
    assert set(recipes) >= RECIPES


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("bnce train --loss ", LOSSES),
        ("bnce train --model ", MODELS),
        ("bnce train --loss bnce,bn", []),
        ("bnce train ", [*RECIPES, "more/", "mine.toml"]),
        ("bnce info te", ["text.txt"]),
        ("bnce train --set training.", ["training.epochs=", "training.batch_size="]),
        ("bnce compare --format ", ["text", "markdown"]),
        ("bnce export --to ", ["onnx", "transformers", "safetensors"]),
        ("bnce score --device ", ["auto", "cpu", "cuda"]),
        ("bnce experiment --rows snce,", ["snce,bnce", "snce,rnn"]),
    ],
)
def test_the_shell_asks_and_is_answered(
    words: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").touch()
    (tmp_path / "text.txt").touch()
    (tmp_path / "more").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_BNCE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    monkeypatch.setattr(sys, "argv", ["bnce"])
    with pytest.raises(SystemExit):
        cli.main()
    offered = capsys.readouterr().out.split()
    assert set(expected) <= set(offered)
    assert expected or not offered


def test_completion_is_quick() -> None:
    code = "import sys, bnce.cli\ntry: bnce.cli.main()\nfinally: print('torch' in sys.modules, 'numpy' in sys.modules)"
    asked = {"_BNCE_COMPLETE": "complete_bash", "COMP_WORDS": "bnce train --loss chunk-b", "COMP_CWORD": "3"}
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True)
    assert done.stdout.split() == ["chunk-bnce", "False", "False"]
