"""Recipes: families of runs as TOML files, and how one is resolved to the settings of a run.

`[model]`, `[loss]` and `[optimiser]` have what any of the family may use. `[models.NAME]` and `[losses.NAME]` have what
differs by model and loss, `[optimisers.NAME]` the rates of an optimiser, `[corpora.NAME]` how one corpus is trained on
and no other. A recipe may name one other recipe as its `base`: a shipped one, or a file beside its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bnce.errors import UserError, unknown_name
from bnce.registry import KNOWN, check_keys, convert, find
from bnce.settings import DEFAULTS, SECTIONS, RunConfig, Setting, Table, as_tables, from_tables, lay, read_tables

_VARIANTS = {"models": "model", "losses": "loss", "optimisers": "optimiser", "corpora": "training"}
_NAMES = {section: {"name": getattr(DEFAULTS, section).name} for section in KNOWN}
_SHIPPED = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}
_TEXTS = ("base", "corpus")


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
    recipe, given = lay(_NAMES, _read(name)), as_tables(settings)
    model, loss = model or recipe["model"]["name"], loss or recipe["loss"]["name"]
    corpus = corpus or recipe.get("corpus", "")
    own: Table = {"model": {"name": model}, "loss": {"name": loss}}
    for key, variant in (("models", model), ("losses", loss), ("corpora", corpus)):
        table = recipe[key].get(str(variant), {})
        own = lay(own, {"optimiser": table.pop("optimiser", {}), _VARIANTS[key]: table})
    optimiser = lay(recipe, own, given)["optimiser"]["name"]
    rates = recipe["optimisers"].get(str(optimiser), {})
    resolved = lay(recipe, {"optimiser": rates}, own, {"optimiser": {"name": optimiser}})
    for section in SECTIONS:
        table, on_top = resolved[section], given[section]
        own[section] = _fitting(section, table | on_top) if of_several else _fitting(section, table) | on_top
    return from_tables({"recipe": Path(name).stem, "corpus": corpus, **own}, name)


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
    tables = {key: {} for key in (*SECTIONS, *_VARIANTS)} | read_tables(path)
    check_keys(tables, (*SECTIONS, *_VARIANTS, *_TEXTS), f"setting in {name}:")
    for key, value in tables.items():
        convert(value, str if key in _TEXTS else Table, f"{name}: {key}")
    for key, section in _VARIANTS.items():
        if section in KNOWN:
            check_keys(tables[key], KNOWN[section], f"{section} in {name}: [{key}]:")
        for variant, table in tables[key].items():
            own = convert(table, Table, f"{name}: {key}.{variant}")
            convert(own.get("optimiser", {}), Table, f"{name}: {key}.{variant}.optimiser")
    if (base := tables.pop("base", None)) is None:
        return tables
    below = _read(base if base in _SHIPPED else str(path.parent / base), (*above, real))
    for rates in below["optimisers"].values():  # the recipe goes before its base, even where that has rates
        for key in tables["optimiser"]:
            rates.pop(key, None)
    return lay(below, tables)
