"""Recipes: families of runs as TOML files, and how one is resolved to the settings of a run.

`[model]`, `[loss]` and `[optimiser]` have what any of the family may use. `[models.NAME]` and `[losses.NAME]` have what
differs by model and loss, `[optimisers.NAME]` the rates of an optimiser, `[corpora.NAME]` how one corpus is trained on
and no other. A recipe may name one other recipe as its `base`: a shipped one, or a file beside its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bnce.errors import UserError, shown, unknown_name
from bnce.registry import KNOWN, find
from bnce.settings import DEFAULTS, SECTIONS, RunConfig, Setting, apply_setting, check_table, from_tables, read_tables

_VARIANTS = {"models": "model", "losses": "loss", "optimisers": "optimiser", "corpora": "training"}
_SHIPPED = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}
Table = dict[str, Any]


def recipe_names() -> list[str]:
    """List the recipes that come with the package."""
    return list(_SHIPPED)


def load_recipe(
    name: str,
    *,
    model: str | None = None,
    loss: str | None = None,
    corpus: str | None = None,
    settings: Sequence[Setting] = (),
    of_several: bool = False,
) -> RunConfig:
    """Resolve a recipe (a shipped name or a TOML file) for one model and one loss, with settings on top.

    The corpus, unless one is named, is the recipe's own. Settings `of_several` runs are left out where only other
    models, losses or optimisers have them, as those of a recipe are.
    """
    recipe = _read(name)
    given: Table = {section: {} for section in SECTIONS}
    for setting in settings:
        apply_setting(given, setting)
    model = model or recipe["model"].get("name", DEFAULTS.model.name)
    loss = loss or recipe["loss"].get("name", DEFAULTS.loss.name)
    corpus = corpus or recipe.get("corpus", "")
    of_model, of_loss = recipe["models"].get(str(model), {}), recipe["losses"].get(str(loss), {})
    rates = {**of_model.pop("optimiser", {}), **of_loss.pop("optimiser", {})}
    chosen = {"name": DEFAULTS.optimiser.name, **recipe["optimiser"], **rates, **given["optimiser"]}["name"]
    resolved: Table = {
        "model": {**recipe["model"], **of_model, "name": model},
        "loss": {**recipe["loss"], **of_loss, "name": loss},
        "optimiser": {**recipe["optimiser"], **recipe["optimisers"].get(str(chosen), {}), **rates, "name": chosen},
        "training": {**recipe["training"], **recipe["corpora"].get(str(corpus), {})},
    }
    for section, table in resolved.items():
        own = _fitting(section, table | given[section]) if of_several else _fitting(section, table) | given[section]
        resolved[section] = own
    return from_tables({"recipe": Path(name).stem, "corpus": corpus, **resolved}, name)


def _fitting(section: str, table: Table) -> Table:
    """Leave out what this record has no use for, but another one has."""
    if section not in KNOWN:
        return table
    own = find(SECTIONS[section], table["name"]).__struct_fields__
    of_others = {field for other in KNOWN[section].values() for field in other.__struct_fields__}.difference(own)
    return {key: value for key, value in table.items() if key not in of_others}


def _read(name: str, above: tuple[str, ...] = ()) -> Table:
    """Read a recipe and lay it over its base."""
    path = _SHIPPED.get(name, Path(name))
    if not os.path.isfile(path):  # Path.is_file raises over names that are too long
        if path.suffix == ".toml" or "/" in name:
            raise UserError(
                f"The recipe file '{name}' does not exist: give a TOML file or one of {', '.join(_SHIPPED)}."
            )
        raise unknown_name("recipe", name, _SHIPPED)
    if (real := os.path.realpath(path)) in above:
        raise UserError(f"Recipe '{name}' is its own base ({' → '.join((*above, real))}): give another base.")
    tables = read_tables(path)
    check_table(tables, (*SECTIONS, *_VARIANTS, "base", "corpus"), name, "key")
    for key in SECTIONS:
        check_table(tables.setdefault(key, {}), None, f"{name}: [{key}]")
    for key, section in _VARIANTS.items():
        check_table(tables.setdefault(key, {}), KNOWN.get(section), f"{name}: [{key}]", section)
        for variant, table in tables[key].items():
            check_table(table, None, f"{name}: [{key}.{variant}]")
            check_table(table.get("optimiser", {}), None, f"{name}: [{key}.{variant}.optimiser]")
    if (base := tables.pop("base", None)) is None:
        return tables
    if not isinstance(base, str):
        raise UserError(f"{name}: base is {shown(base)}: it must be the name or the path of one recipe.")
    below = _read(base if base in _SHIPPED else str(path.parent / base), (*above, real))
    for rates in below["optimisers"].values():  # the recipe goes before its base, even where that has rates
        for key in tables["optimiser"]:
            rates.pop(key, None)
    return _laid(tables, below)


def _laid(upper: Table, lower: Table) -> Table:
    """Lay tables over others, key by key."""
    both = {key for key, value in upper.items() if isinstance(value, dict) and isinstance(lower.get(key), dict)}
    return {**lower, **upper, **{key: _laid(upper[key], lower[key]) for key in both}}
