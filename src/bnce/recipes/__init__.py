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
from bnce.registry import KNOWN, Loss, ModelConfig, find
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
    recipe: Table = {}
    for tables in chain:
        recipe = _merge(recipe, tables)
    given: Table = {section: {} for section in SECTIONS}
    for setting in settings:
        apply_setting(given, setting)
    model = model or recipe["model"].get("name", DEFAULTS.model.name)
    loss = loss or recipe["loss"].get("name", DEFAULTS.loss.name)
    find(ModelConfig, model)
    find(Loss, loss)
    corpus = corpus or recipe.get("corpus", "")
    own = {"model": recipe["models"].get(model, {}), "loss": recipe["losses"].get(loss, {})}
    own["training"] = recipe["corpora"].get(corpus, {}) if isinstance(corpus, str) else {}
    own["optimiser"] = {**own["model"].pop("optimiser", {}), **own["loss"].pop("optimiser", {})}
    chosen = {"name": DEFAULTS.optimiser.name, **recipe["optimiser"], **own["optimiser"], **given["optimiser"]}["name"]
    rates: Table = {}
    for tables in chain:  # a recipe goes before its base, even where that has rates of this optimiser
        rates |= {**tables["optimiser"], **tables["optimisers"].get(chosen, {})}
    resolved = {section: {**recipe[section], **own[section]} for section in SECTIONS}
    resolved["optimiser"] = {**rates, **own["optimiser"], "name": chosen}
    resolved["model"]["name"], resolved["loss"]["name"] = model, loss
    if of_several:
        fitting = {section: _fitting(section, {**resolved[section], **given[section]}) for section in SECTIONS}
    else:
        fitting = {section: {**_fitting(section, resolved[section]), **given[section]} for section in SECTIONS}
    return from_tables({"recipe": Path(name).stem, "corpus": corpus, **fitting}, name)


def _fitting(section: str, table: Table) -> Table:
    """Leave out what this record has no use for, but another one has."""
    if section == "training":
        return table
    known = find(SECTIONS[section], table["name"]).__struct_fields__
    of_others = {field for other in KNOWN[section].values() for field in other.__struct_fields__}.difference(known)
    return {key: value for key, value in table.items() if key not in of_others}


def _read_with_bases(name: str) -> list[Table]:
    """Read a recipe, its base, the base of that and so on: the lowest base first."""
    chain: list[Table] = []
    seen: list[str] = []
    at: str | None = name
    while at is not None:
        if at in seen:
            raise UserError(f"Recipe '{at}' is its own base ({' → '.join((*seen, at))}): give another base.")
        seen.append(at)
        chain.insert(0, _read(at))
        at = _find_base(at, chain[0].pop("base", None))
    return chain


def _read(name: str) -> Table:
    """Read one recipe, with all tables that it could have."""
    tables = read_tables(_find_file(name))
    known_keys(tables, (*SECTIONS, *_VARIANTS, "base", "corpus"), name, "key")
    for key in (*SECTIONS, *_VARIANTS):
        must_be_table(tables.setdefault(key, {}), f"{name}: [{key}]")
    for key, section in _VARIANTS.items():
        if section in KNOWN:
            known_keys(tables[key], KNOWN[section], f"{name}: [{key}]", section)
        for variant, table in tables[key].items():
            must_be_table(table, f"{name}: [{key}.{variant}]")
            must_be_table(table.get("optimiser", {}), f"{name}: [{key}.{variant}.optimiser]")
            if "name" in table:
                raise UserError(f"{name}: [{key}.{variant}] has a name of its own: leave it out.")
    return tables


def _find_base(name: str, base: Any) -> str | None:
    if base is None:
        return None
    if not isinstance(base, str):
        raise UserError(f"{name}: base is {shown(base)}: it must be the name or the path of one recipe.")
    # A base may stand beside the file that names it; resolved, so that a circle of files always meets itself.
    beside = (Path(name).parent / base).resolve()
    is_beside = base.isprintable() and name not in _SHIPPED and os.path.isfile(beside)
    return str(beside) if is_beside else base


def _find_file(name: str) -> Path:
    path = _SHIPPED.get(name, Path(name))
    if os.path.isfile(path):  # Path.is_file raises over names that are too long
        return path
    if path.suffix == ".toml" or "/" in name:
        raise UserError(f"The recipe file '{name}' does not exist: give a TOML file or one of {', '.join(_SHIPPED)}.")
    raise unknown_name("recipe", name, _SHIPPED)


def _merge(below: Table, above: Table) -> Table:
    merged = dict(below)
    for key, value in above.items():
        both_tables = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both_tables else value
    return merged
