"""From a recipe to the settings of one run.

A recipe describes a family of runs: `[models.NAME]` and `[losses.NAME]` hold what differs by model and loss,
`[optimisers.NAME]` the rates of an optimiser, `[corpora.NAME]` how one corpus is trained on and no other, and it may
name one other recipe as its `base`. Choosing a model, a loss, an optimiser and a corpus resolves it to a `RunConfig`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from bnce.config import (
    SECTIONS,
    LossConfig,
    ModelConfig,
    OptimiserConfig,
    RunConfig,
    apply_setting,
    from_tables,
    known_keys,
    must_be_table,
    parse_tables,
    read_bytes,
)
from bnce.errors import UserError, shown, unknown_name
from bnce.kinds.bodies import BODIES
from bnce.kinds.kind import Registry
from bnce.kinds.losses import LOSSES
from bnce.kinds.optimisers import OPTIMISERS

_VARIANTS: dict[str, Registry[Any]] = {"models": BODIES, "losses": LOSSES, "optimisers": OPTIMISERS}
_RATES = tuple(field.name for field in dataclasses.fields(OptimiserConfig) if field.name != "name")


def recipe_names() -> list[str]:
    """List the recipes that come with the package."""
    return sorted(entry.name.removesuffix(".toml") for entry in _shipped().iterdir() if entry.name.endswith(".toml"))


def load_recipe(
    name: str,
    *,
    model: str | None = None,
    loss: str | None = None,
    corpus: str | None = None,
    settings: Sequence[str] = (),
) -> RunConfig:
    """Resolve a recipe (a shipped name or a TOML file) for one model and one loss, with `key=value` settings on top.

    The corpus, unless one is named, is the recipe's own.
    """
    chain = _read_with_bases(name)
    first = _resolve(chain, model, loss, corpus, settings)
    optimiser = str(first["optimiser"].get("name", OptimiserConfig.name))
    resolved = _resolve([_with_rates(tables, optimiser) for tables in chain], model, loss, corpus, settings)
    return from_tables({"recipe": Path(name).stem, **resolved}, name)


def _with_rates(tables: dict[str, Any], optimiser: str) -> dict[str, Any]:
    """Put what a recipe says of one optimiser on top of its `[optimiser]`: a recipe above it goes before both."""
    return {**tables, "optimiser": {**tables.get("optimiser", {}), **tables.get("optimisers", {}).get(optimiser, {})}}


def _resolve(
    chain: Sequence[dict[str, Any]], model: str | None, loss: str | None, corpus: str | None, settings: Sequence[str]
) -> dict[str, Any]:
    """Lay a recipe over its bases, and what differs by model, loss and corpus and the settings on top."""
    tables: dict[str, Any] = {}
    for above in chain:
        tables = _merge(tables, above)
    model = model or str(tables.get("model", {}).get("name", ModelConfig.name))
    loss = loss or str(tables.get("loss", {}).get("name", LossConfig.name))
    BODIES.find(model)
    LOSSES.find(loss)
    of_model, of_loss = dict(tables.get("models", {}).get(model, {})), dict(tables.get("losses", {}).get(loss, {}))
    corpus = corpus or tables.get("corpus", "")
    of_corpus = tables.get("corpora", {}).get(corpus, {}) if isinstance(corpus, str) else {}
    rates = [of_model.pop("optimiser", {}), of_loss.pop("optimiser", {})]
    resolved: dict[str, Any] = {
        "corpus": corpus,
        "model": {**tables.get("model", {}), **of_model, "name": model},
        "loss": {**tables.get("loss", {}), **of_loss, "name": loss},
        "optimiser": {**tables.get("optimiser", {}), **rates[0], **rates[1]},
        "training": {**tables.get("training", {}), **of_corpus},
    }
    for setting in settings:
        apply_setting(resolved, setting)
    return resolved


def _shipped() -> Any:
    return resources.files("bnce") / "recipes"


def _read_with_bases(name: str) -> list[dict[str, Any]]:
    """Read a recipe, its base, the base of that and so on: the lowest base first."""
    chain: list[dict[str, Any]] = []
    seen: list[str] = []
    at: str | None = name
    while at is not None:
        if at in seen:
            raise UserError(f"Recipe '{at}' is its own base ({' → '.join((*seen, at))}): give another base.")
        seen.append(at)
        tables = _read(at)
        chain.insert(0, tables)
        at = _find_base(at, tables.pop("base", None))
    return chain


def _read(name: str) -> dict[str, Any]:
    tables = parse_tables(_recipe_bytes(name), name)
    known_keys(tables, (*SECTIONS, *_VARIANTS, "corpora", "base", "corpus"), name, "key")
    for key in (*SECTIONS, *_VARIANTS, "corpora"):
        must_be_table(tables.get(key, {}), f"{name}: [{key}]")
    for key, registry in _VARIANTS.items():
        known_keys(tables.get(key, {}), registry.names, f"{name}: [{key}]", registry.what)
        for variant, table in tables.get(key, {}).items():
            must_be_table(table, f"{name}: [{key}.{variant}]")
            if key == "optimisers":
                known_keys(table, _RATES, f"{name}: [{key}.{variant}]", "setting")
            else:
                must_be_table(table.get("optimiser", {}), f"{name}: [{key}.{variant}.optimiser]")
    for variant, table in tables.get("corpora", {}).items():
        must_be_table(table, f"{name}: [corpora.{variant}]")
    return tables


def _find_base(name: str, base: Any) -> str | None:
    if base is None:
        return None
    if not isinstance(base, str):
        raise UserError(f"{name}: base is {shown(base)}: it must be the name or the path of one recipe.")
    if not base or not base.isprintable():
        raise unknown_name("recipe", base, recipe_names())
    # A base may stand beside the file that names it; resolved, so that a circle of files always meets itself.
    beside = (Path(name).parent / base).resolve()
    is_beside = name not in recipe_names() and os.path.isfile(beside)
    return str(beside) if is_beside else base


def _recipe_bytes(name: str) -> bytes:
    if name in recipe_names():
        return bytes((_shipped() / f"{name}.toml").read_bytes())
    path = Path(name)
    if os.path.isfile(path):  # Path.is_file raises over names that are too long
        return read_bytes(path)
    if path.suffix == ".toml" or "/" in name:
        raise UserError(
            f"The recipe file '{name}' does not exist: give a TOML file or one of {', '.join(recipe_names())}."
        )
    raise unknown_name("recipe", name, recipe_names())


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both_tables = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both_tables else value
    return merged
