"""NoP: the paper's two tables, and the parameters a model really has."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command import call
from run_files import sizes_of
from small_corpus import small_run

from bnce import MODELS

# Tables 2 and 4 of the paper; its OBWB vocabulary is "≈ 0.8M", the usual one has 793,471 words.
LTCB_MILLIONS = {"ffnn": 48.8, "rnn": 64.6, "relu-rnn": 48.8, "lstm": 66.0, "relu-lstm": 50.3}
OBWB_BILLIONS = {"ffnn": "0.88", "rnn": "1.59", "relu-rnn": "0.88", "lstm": "1.60", "relu-lstm": "0.89"}


def count(recipe: str, model: str, *changes: str, vocab_size: int = 23) -> dict[str, int]:
    """Count the parameters of a recipe's network by their parts."""
    settings = [word for change in changes for word in ("--set", change)]
    record = call("info", recipe, "--model", model, "--vocab-size", vocab_size, *settings, "--json").json
    assert record["num_parameters"] == sum(record["num_parameters_by_part"].values())
    counts: dict[str, int] = record["num_parameters_by_part"]
    return counts


@pytest.mark.parametrize("model", LTCB_MILLIONS)
def test_ltcb_models_have_the_paper_s_size(model: str) -> None:
    total = sum(count("ltcb", model, vocab_size=80_000).values())
    assert total == pytest.approx(LTCB_MILLIONS[model] * 1e6, rel=0.002)


@pytest.mark.parametrize("model", LTCB_MILLIONS)
def test_obwb_models_have_the_paper_s_size(model: str) -> None:
    total = sum(count("obwb", model, vocab_size=793_471).values())
    assert f"{total / 1e9:.2f}" == OBWB_BILLIONS[model]


SIZES: dict[str, Any] = {"embedding_size": 5, "hidden_size": 7, "bottleneck_size": 4, "order": 4}


@pytest.mark.parametrize("model", LTCB_MILLIONS)
@pytest.mark.parametrize(("learn_log_z", "num_layers"), [(False, 1), (True, 1), (False, 3)])
def test_the_count_is_what_a_model_really_has(tmp_path: Path, model: str, learn_log_z: bool, num_layers: int) -> None:
    sizes = {key: size for key, size in {**SIZES, "num_layers": num_layers}.items() if hasattr(MODELS[model], key)}
    really = sizes_of(small_run(tmp_path / "run", model, **sizes))
    changes = [f"model.{name}={size}" for name, size in sizes.items()]
    counts = count("wiki", model, *changes, f"loss.learn_log_z={json.dumps(learn_log_z)}", vocab_size=30)
    assert counts.pop("log_z", 0) == int(learn_log_z)
    assert counts == {
        "embedding": really["embedding"],
        "body": sum(size for name, size in really.items() if name.startswith("body.")),
        "output_weight": really["output.weight"],
        "output_bias": really["output.bias"],
    }


def test_another_layer_adds_its_two_products_and_biases() -> None:
    changes = [f"model.{name}={size}" for name, size in SIZES.items() if name != "order"]
    one, two = (count("wiki", "relu-lstm", *changes, f"model.num_layers={number}") for number in (1, 2))
    assert two["body"] - one["body"] == 4 * (7 * 7 + 7 * 7 + 7 + 7)


def test_a_count_takes_neither_memory_nor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch imports it, and SymPy with it, where numbers that are not there are added up: a second.
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.symbolic_shapes", None)
    sizes = ("model.embedding_size=5", "model.hidden_size=7")
    assert count("wiki", "rnn", *sizes, vocab_size=10**12)["output_weight"] == 7 * 10**12
