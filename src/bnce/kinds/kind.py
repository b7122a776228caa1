"""What all kinds have in common, and how one is found by its name."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bnce.errors import UserError, unknown_name

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")  # names stand in lists with commas and become directories


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One loss, body or optimiser."""

    name: str  # as it is typed and kept in config.toml
    shown: str  # as tables print it
    help: str  # what it is, in a few words; stands in brackets behind the name
    built_by: str  # "package.module:name", imported when it is needed

    def load(self) -> Any:
        """Import what builds it."""
        return load(self.built_by)


def load(place: str) -> Any:
    """Import what stands at "package.module:name"."""
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"Cannot import '{place}' ({error}): write package.module:name into the record.") from error


K = TypeVar("K", bound=Kind)


class Registry(Generic[K]):
    """Records by name, in the order of lists and tables."""

    def __init__(self, what: str, *kinds: K) -> None:
        self.what = what
        self._kinds: dict[str, K] = {}
        for kind in kinds:
            self.register(kind)

    def register(self, kind: K) -> None:
        """Add a kind, after those that are there."""
        if not _NAME.fullmatch(kind.name) or kind.name == "all":
            raise UserError(
                f"A {self.what} cannot be called '{kind.name}': use lower-case letters, digits and hyphens between "
                "them, and not 'all'."
            )
        if kind.name in self._kinds:
            raise UserError(f"There is a {self.what} '{kind.name}' already: give yours another name.")
        self._kinds[kind.name] = kind

    def find(self, name: str) -> K:
        """Find a kind by its name."""
        if name not in self._kinds:
            raise unknown_name(self.what, name, self.names)
        return self._kinds[name]

    def place(self, name: str) -> int:
        """Say where among the others a kind stands in a table."""
        return self.names.index(self.find(name).name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all, in their order."""
        return tuple(self._kinds)

    @property
    def help(self) -> str:
        """All names, each with its few words."""
        return ", ".join(f"{kind.name} ({kind.help})" for kind in self)

    def __iter__(self) -> Iterator[K]:
        return iter(self._kinds.values())

    def __contains__(self, name: object) -> bool:
        """Say whether there is a kind of this name."""
        return name in self.names

    def __len__(self) -> int:
        return len(self._kinds)

    def __repr__(self) -> str:
        return f"<{self.what}: {', '.join(self.names)}>"
