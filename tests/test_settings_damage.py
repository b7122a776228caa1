"""Damaged recipes, settings of runs and normalisers are read as they are or refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from damage import damaged
from small_corpus import small_config

from bnce import Normaliser, UserError
from bnce.recipes import load_recipe, recipe_names
from bnce.settings import read_config, to_toml

TOML_VALUES = [
    *("[]", "{}", "{a = 1}", "[[{a = [1]}]]", "-1", "1e999", "nan", "inf", "true", "1979-05-27", "''", "'x'"),
    *('"\\u0000"', '"\\n"', f"'{'x' * 5000}'", f"1{'0' * 400}", f"1{'0' * 5000}", f"0x{'f' * 5000}", "null"),
]
JSON_VALUES = ["[]", "{}", "null", "-1", "1e999", "NaN", '"x"', '"\\ud800"', "1" * 400]


def refusal(read: Callable[[Any], object], given: object) -> str | None:
    """Give the sentence by which something is refused."""
    try:
        read(given)
    except UserError as error:
        return str(error)
    return None


def check(messages: list[str | None], num_refused: int) -> None:
    refused = [message for message in messages if message is not None]
    assert len(refused) >= num_refused
    assert not [message for message in refused if "\n" in message or len(message) > 500]


@pytest.mark.parametrize("name", recipe_names())
def test_damaged_recipes(tmp_path: Path, name: str) -> None:
    content = (resources.files("bnce") / "recipes" / f"{name}.toml").read_bytes()
    path = tmp_path / "recipe.toml"

    def read(seed: int) -> object:
        path.write_bytes(damaged(content, seed))
        return load_recipe(str(path))

    check([refusal(read, seed) for seed in range(200)], 40)


def test_damaged_settings_of_a_run(tmp_path: Path) -> None:
    content = to_toml(small_config()).encode()
    path = tmp_path / "config.toml"

    def read(seed: int) -> object:
        path.write_bytes(damaged(content, seed))
        return read_config(path)

    check([refusal(read, seed) for seed in range(400)], 100)


def with_values(text: str, values: list[str], separator: str) -> list[str]:
    """Write every value in the place of every other."""
    lines = text.splitlines()
    places = [place for place, line in enumerate(lines) if separator in line and not line.startswith("#")]
    return [
        "\n".join([*lines[:place], f"{lines[place].split(separator)[0]}{separator} {value}", *lines[place + 1 :]])
        for place in places
        for value in values
    ]


def test_wrong_values_in_settings(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    recipe = 'base = "demo"\n' + to_toml(small_config()).replace('recipe = "small"\n', "")

    def read(text: str) -> object:
        path.write_text(text)
        return load_recipe(str(path))

    texts = with_values(recipe, TOML_VALUES, " =")
    check([refusal(read, text) for text in texts], len(texts) // 2)


def test_wrong_values_in_a_normaliser() -> None:
    right = Normaliser().to_dict()
    records = [{**right, name: json.loads(value)} for name in right for value in JSON_VALUES]
    check([refusal(Normaliser.from_dict, record) for record in records], len(records) // 2)


@pytest.mark.parametrize("settings", [[], [1], "x", None, 3, {"lowercase": 1}, {"tokens": []}, {"numbers": {}}])
def test_normalisers_that_are_none(settings: object) -> None:
    with pytest.raises(UserError):
        Normaliser.from_dict(settings)  # type: ignore[arg-type]
