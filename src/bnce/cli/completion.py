"""What a shell offers for the value of an option: names that are known without loading PyTorch."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable

Completer = Callable[[str], list[str]]


def complete(*names: str) -> Completer:
    """Offer names."""

    def completer(incomplete: str) -> list[str]:
        return _fitting(names, incomplete)

    return completer


def complete_list(*names: str) -> Completer:
    """Offer names for the last item of a list with commas; those that are in it already are left out."""

    def completer(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        left = [name for name in names if name not in before.split(",")]
        return [f"{before}{comma}{name}" for name in _fitting(left, last)]

    return completer


def complete_recipe(incomplete: str) -> list[str]:
    """Offer the shipped recipes, and TOML files and directories."""
    from bnce.recipes import recipe_names

    return [*_fitting(recipe_names(), incomplete), *_paths(incomplete, ".toml")]


def complete_subject(incomplete: str) -> list[str]:
    """Offer the shipped recipes, and everything there is on disk."""
    from bnce.recipes import recipe_names

    return [*_fitting(recipe_names(), incomplete), *_paths(incomplete, "")]


def complete_setting(incomplete: str) -> list[str]:
    """Offer the names of settings, each with its =, and the optimisers."""
    from bnce.registry import KNOWN, OPTIMISERS
    from bnce.settings import SECTIONS

    names: list[str] = []
    for section, base in SECTIONS.items():
        kinds = KNOWN.get(section, {"": base}).values()
        names += dict.fromkeys(f"{section}.{key}=" for kind in kinds for key in kind.__struct_fields__)
    names += [f"optimiser.name={name}" for name in OPTIMISERS]
    return _fitting(names, incomplete)


def _fitting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _paths(incomplete: str, ending: str) -> list[str]:
    found = sorted(glob.iglob(f"{glob.escape(incomplete)}*"))
    directories = [f"{path}{os.sep}" for path in found if os.path.isdir(path)]
    return [*directories, *(path for path in found if os.path.isfile(path) and path.endswith(ending))]
