"""Every public name of `bnce` as one Markdown page, from signatures and docstrings."""

from __future__ import annotations

import functools
import html
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import bnce

_API = Path(__file__).parents[1] / "docs" / "api.md"
_TITLE = "# Python names"
_INTRODUCTION = """\
This page is made from the program: it lists every name that `import bnce` gives, with its arguments and its docstring.
[api.md](api.md) has an example of each name, and says when to use it. An entry without a call is a property.
"""
_WIDTH = 100  # of a signature in one line
_NO_VALUE = inspect.Parameter.empty
_CODE = re.compile(r"(`[^`]+`)")


def python_page() -> str:
    """Write the page."""
    parts = [_TITLE, _INTRODUCTION]
    for name in sorted(bnce.__all__, key=lambda name: (name.strip("_").lower(), name)):
        parts += _name(name, getattr(bnce, name))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _name(name: str, value: Any) -> Iterator[str]:
    yield f"## {name.replace('_', chr(92) + '_')}"
    if isinstance(value, ModuleType):
        yield f"```python\nfrom bnce import {name}\n```"
        yield from _docstring(value)
        for member, inner in _members_of_module(value):
            yield from _member(f"{name}.{member}", inner)
    elif inspect.isclass(value):
        yield from _class(f"bnce.{name}", value)
        for member, inner in _members(value):
            yield from _member(f"{name}.{member}", inner)
    elif callable(value):
        yield _signature(f"bnce.{name}", value)
        yield from _docstring(value)
    elif isinstance(value, str):
        yield f"The version of the package: `{value}`."
    else:
        yield f"```python\nbnce.{name}\n```"
        yield f"Names: {', '.join(f'`{name}`' for name in value)}."


def _class(title: str, value: type) -> Iterator[str]:
    if _is_made_by_users(value):
        yield _signature(title, value)
    yield from _docstring(value)


def _is_made_by_users(value: type) -> bool:
    """Say whether a class is called: others come from functions, or have arguments that are their own affair."""
    if inspect.isabstract(value) or issubclass(value, Exception):
        return False
    return not any(name.startswith("_") for name in inspect.signature(value).parameters)


def _member(title: str, value: Any) -> Iterator[str]:
    yield f"### {title.replace('_', chr(92) + '_')}"
    if isinstance(value, property | functools.cached_property):
        yield from _docstring(value.fget if isinstance(value, property) else value.func)
    elif inspect.isclass(value):
        yield from _class(title, value)
    else:
        yield _signature(title, value)
        yield from _docstring(value)


def _members(owner: type) -> Iterator[tuple[str, Any]]:
    """List what our own code gives a class beside what it inherits from others: methods and properties."""
    for name in dir(owner):
        home = next((one for one in owner.__mro__ if name in vars(one)), None)
        if name.startswith("_") or home is None or not home.__module__.startswith("bnce."):
            continue
        value = vars(home)[name]
        if isinstance(value, property | functools.cached_property):
            yield name, value
        elif inspect.isroutine(getattr(owner, name)):
            yield name, getattr(owner, name)


def _members_of_module(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """List what a module is for: the names in it that api.md shows."""
    shown = _API.read_text(encoding="utf-8")
    short = module.__name__.rpartition(".")[2]
    for name, value in vars(module).items():
        is_own = getattr(value, "__module__", None) == module.__name__
        if is_own and not name.startswith("_") and re.search(rf"\b{short}\.{name}\b", shown):
            yield name, value


def _signature(title: str, value: Any) -> str:
    """Write the call, in one line or one argument per line."""
    arguments = list(_arguments(inspect.signature(value)))
    returned = inspect.signature(value).return_annotation
    result = "" if returned in (_NO_VALUE, None, "None") else f" -> {_type(returned)}"
    line = f"{title}({', '.join(arguments)}){result}"
    if len(line) > _WIDTH:
        line = "\n".join([f"{title}(", *(f"    {one}," for one in arguments), f"){result}"])
    return f"```python\n{line}\n```"


def _arguments(signature: inspect.Signature) -> Iterator[str]:
    marks: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    by_name_only = False
    for name, parameter in signature.parameters.items():
        if name == "self":
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not by_name_only:
            by_name_only = True
            yield "*"
        written = marks.get(parameter.kind, "") + name
        by_name_only = by_name_only or parameter.kind is inspect.Parameter.VAR_POSITIONAL
        if parameter.annotation is not _NO_VALUE:
            written += f": {_type(parameter.annotation)}"
        if parameter.default is not _NO_VALUE:
            shown = repr(parameter.default)
            # A function or an object has no form that somebody could write.
            written += f" = {'...' if shown.startswith('<') else shown}"
        yield written


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _docstring(value: Any) -> Iterator[str]:
    """Give the paragraphs of a docstring; those that are indented are code."""
    text = inspect.getdoc(value)
    for paragraph in re.split(r"\n\s*\n", text or ""):
        if paragraph.startswith("    "):
            yield f"```python\n{inspect.cleandoc(paragraph)}\n```"
        else:
            yield "".join(
                part if part.startswith("`") else html.escape(part, quote=False) for part in _CODE.split(paragraph)
            )
