"""How a command reads its line, and how `--help` looks: plain text in 80 columns, the same with every typer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

from bnce.errors import UserError

# What typer adds to names and help texts: types after a metavar, braces around required arguments, and ranges, which
# our texts name where they matter.
_TYPE = re.compile(r" <[^>]*>$")
_RANGE = re.compile(r"(?:; )?(?:-?[\d.]+<=?x(?:<=?[\d.]+)?|x[<>]=?-?[\d.]+)")
_DEFAULT = re.compile(r"default: \((.*?)\)(?=[;\]])")
_LONG_OPTION = re.compile(r"--[a-z][a-z-]*(?:=.*)?", re.DOTALL)
_EMPTY = re.compile(r"  \[\]$")


class HelpCommand(TyperCommand):
    """A command whose options stand in sections, each name with its value and what it does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed; an option whose value was left out does not take the next option for it."""
        if not ctx.resilient_parsing:  # a shell asks how a line could go on
            self._refuse_missing_values(ctx, args)
        return list(super().parse_args(ctx, args))

    def _refuse_missing_values(self, ctx: Any, args: Sequence[str]) -> None:
        options: dict[str, Any] = {
            name: parameter
            for parameter in self.get_params(ctx)
            if parameter.param_type_name == "option"
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
        words = iter(args)
        for name in words:
            if name == "--":
                return
            if name in options and not (options[name].is_flag or options[name].count):
                value = next(words, "")
                if value.partition("=")[0] in options:
                    raise UserError(
                        f"Option '{name}' requires an argument, but the option '{value}' follows it: "
                        f"see '{ctx.command_path} --help'."
                    )
                if _LONG_OPTION.fullmatch(value):
                    longest = max(options[name].opts, key=len)
                    raise UserError(
                        f"Option '{name}' requires an argument, but '{value}' follows it, which looks like an option: "
                        f"give the argument; if '{value}' is it, write '{longest}={value}'."
                    )

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Give the parts of the usage line: RUN, [FILE], SOURCE..."""
        return [_plain_usage(piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options; `rich_help_panel` names the section of an option."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            is_argument = parameter.param_type_name == "argument"
            section = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or "Options"
            sections.setdefault(section, []).append(_plain_record(*record, is_argument))
        for section, records in sections.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)


def _plain_usage(piece: str) -> str:
    inner = piece.removesuffix("...")
    if inner.startswith(("{", "[[")):
        inner = inner[1:-1]
    return inner + piece[len(piece.removesuffix("...")) :]


def _plain_record(name: str, text: str, is_argument: bool) -> tuple[str, str]:
    if is_argument:
        name = _TYPE.sub("", name).strip("[]{}")
    # Older versions escape a bracket for rich even where rich has no part in it.
    text = _DEFAULT.sub(r"default: \1", _RANGE.sub("", text.replace("\\[", "[")))
    return name, _EMPTY.sub("", text.replace("[; ", "["))
