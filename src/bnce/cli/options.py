"""Options that several commands share, so that they read alike everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnce.cli.completion import complete, complete_setting
from bnce.cli.console import stderr
from bnce.errors import UserError

if TYPE_CHECKING:
    from bnce.text.tokenised import TokenisedSigns


def option(metavar: str, help: str, *names: str, **settings: Any) -> Any:
    """Make an option with a value; `names` are what it is called, where that is not the name of its argument."""
    return typer.Option(*names, metavar=metavar, help=help, **settings)


def flag(name: str, help: str, **settings: Any) -> Any:
    """Make an option without a value."""
    return typer.Option(name, help=help, **settings)


def choice(names: str, help: str, show_default: bool | str = True) -> Any:
    """Make an option whose value is one of some names, written with | between them."""
    return typer.Option(metavar=names, help=help, show_default=show_default, autocompletion=complete(*names.split("|")))


ModelArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run, mixture (.toml) or n-gram model.")]

# For commands that need PyTorch's network.
TrainedModelArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run, mixture (.toml) or n-gram model.")]

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory from 'bnce train'.")]

DeviceOption = Annotated[
    str,
    option(
        "NAME",
        "Device to compute on: auto, cpu, cuda or cuda:N.",
        autocompletion=complete("auto", "cpu", "cuda", "cuda:0"),
    ),
]


SettingsOption = Annotated[
    list[str] | None,
    option(
        "KEY=VALUE",
        "Change a setting, such as training.epochs=3. May be given several times.",
        "--set",
        autocompletion=complete_setting,
    ),
]

# How probabilities are had; `bnce score` has a third way, which compares the two.
MODES = ("unnormalised", "normalised")
MODE_HELP = "unnormalised: with the constant Z (fast). normalised: with the softmax (exact)."
MODE_DEFAULT = "unnormalised if the model has a constant Z, else normalised"
ModeOption = Annotated[
    str | None, option("MODE", MODE_HELP, "--mode", autocompletion=complete(*MODES), show_default=MODE_DEFAULT)
]

MAY_EXCEED = (
    "unnormalised: with the constant Z, so probabilities sum to 1 only approximately, and one of them can be above 1"
)


def goes_to_stdout(out: Path, as_json: bool) -> bool:
    """Tell whether an output is -, standard output, and refuse to mix it with JSON."""
    if out != Path("-"):
        return False
    if as_json:
        raise UserError("--out - and --json both write to standard output: leave one of them out.")
    return True


def split_numbers(text: str, option: str, example: str = "") -> list[int]:
    """Read a list of whole numbers with commas; a message names the option, and an example if there is one."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        such = f", such as {example}" if example else ""
        raise UserError(f"{option} received '{text}': give whole numbers, separated by commas{such}.") from None


def warn_of_tokenised(signs: TokenisedSigns, name: str) -> None:
    """Say that a text looks tokenised, if it does."""
    told = signs.notice(name)
    if told is not None:
        stderr.print(f"Warning: {told} Use the text from before tokenisation.")
