"""Recipes: families of runs as TOML files, and how one is resolved to the settings of a run.

`[model]`, `[loss]` and `[optimiser]` have what any of the family may use. `[models.NAME]` and `[losses.NAME]` have what
differs by model and loss, `[optimisers.NAME]` the rates of an optimiser, `[corpora.NAME]` how one corpus is trained on
and no other. A recipe may name one other recipe as its `base`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bnce.errors import UserError, shown, unknown_name
from bnce.registry import KNOWN, Loss, ModelConfig, OptimiserConfig, find
from bnce.settings import (
    DEFAULTS,
    SECTIONS,
    RunConfig,
    Setting,
    apply_setting,
    from_tables,
    known_keys,
    must_be_table,
    read_tables,
)

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
    chain = _read_with_bases(name)

    def laid(*path: str) -> Table:
        """Lay what recipes say in one place over what their bases say there."""
        return {key: value for tables in chain for key, value in _inside(tables, path).items()}

    given: Table = {section: {} for section in SECTIONS}
    for setting in settings:
        apply_setting(given, setting)
    model = model or laid("model").get("name", DEFAULTS.model.name)
    loss = loss or laid("loss").get("name", DEFAULTS.loss.name)
    find(ModelConfig, model)
    find(Loss, loss)
    corpus = corpus or laid().get("corpus", "")
    rates = {**laid("models", model, "optimiser"), **laid("losses", loss, "optimiser")}
    chosen = {"name": DEFAULTS.optimiser.name, **laid("optimiser"), **rates, **given["optimiser"]}["name"]
    find(OptimiserConfig, chosen)
    optimiser: Table = {}
    for tables in chain:  # a recipe goes before its base, even where that has rates of this optimiser
        optimiser |= {**_inside(tables, ("optimiser",)), **_inside(tables, ("optimisers", chosen))}
    resolved: Table = {
        "model": {**laid("model"), **laid("models", model), "name": model},
        "loss": {**laid("loss"), **laid("losses", loss), "name": loss},
        "optimiser": {**optimiser, **rates, "name": chosen},
        "training": {**laid("training"), **laid("corpora", str(corpus))},
    }
    for section, table in resolved.items():
        table.pop("optimiser", None)
        own = _fitting(section, table | given[section]) if of_several else _fitting(section, table) | given[section]
        resolved[section] = own
    return from_tables({"recipe": Path(name).stem, "corpus": corpus, **resolved}, name)


def _inside(table: Table, path: Sequence[str]) -> Table:
    for key in path:
        table = table.get(key, {})
    return table


def _fitting(section: str, table: Table) -> Table:
    """Leave out what this record has no use for, but another one has."""
    if section not in KNOWN:
        return table
    known = find(SECTIONS[section], table["name"]).__struct_fields__
    of_others = {field for other in KNOWN[section].values() for field in other.__struct_fields__}.difference(known)
    return {key: value for key, value in table.items() if key not in of_others}


def _read_with_bases(name: str) -> list[Table]:
    """Read a recipe, its base, the base of that and so on: the lowest base first."""
    chain: list[Table] = []
    seen: list[str] = []
    at: Any = name
    while at is not None:
        if at in seen:
            raise UserError(f"Recipe '{at}' is its own base ({' → '.join((*seen, at))}): give another base.")
        seen.append(at)
        tables = _read(at)
        chain.insert(0, tables)
        base = tables.pop("base", None)
        if not isinstance(base, str | None):
            raise UserError(f"{at}: base is {shown(base)}: it must be the name or the path of one recipe.")
        # A base may stand beside the file that names it; resolved, so that a circle of files always meets itself.
        beside = Path(at).parent / base if base is not None and base.isprintable() and at not in _SHIPPED else None
        at = base if beside is None or not os.path.isfile(beside) else str(beside.resolve())
    return chain


def _read(name: str) -> Table:
    path = _SHIPPED.get(name, Path(name))
    if not os.path.isfile(path):  # Path.is_file raises over names that are too long
        known = ", ".join(_SHIPPED)
        if path.suffix == ".toml" or "/" in name:
            raise UserError(f"The recipe file '{name}' does not exist: give a TOML file or one of {known}.")
        raise unknown_name("recipe", name, _SHIPPED)
    tables = read_tables(path)
    known_keys(tables, (*SECTIONS, *_VARIANTS, "base", "corpus"), name, "key")
    for key in (*SECTIONS, *_VARIANTS):
        must_be_table(tables.get(key, {}), f"{name}: [{key}]")
    for key, section in _VARIANTS.items():
        variants = tables.get(key, {})
        known_keys(variants, KNOWN.get(section, variants), f"{name}: [{key}]", section)
        for variant, table in variants.items():
            must_be_table(table, f"{name}: [{key}.{variant}]")
            must_be_table(table.get("optimiser", {}), f"{name}: [{key}.{variant}.optimiser]")
            if "name" in table:
                raise UserError(f"{name}: [{key}.{variant}] has its name already: leave out name.")
    return tables
