"""NoP: the paper's two tables, and the parameters a model really has."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bnce import BODIES, noise
from bnce.config import LossConfig, ModelConfig
from bnce.language_model import LanguageModel, count_parameters
from bnce.recipes.recipe import load_recipe

# Tables 2 and 4 of the paper; its OBWB vocabulary is "≈ 0.8M", the usual one has 793,471 words.
LTCB_MILLIONS = {"ffnn": 48.8, "rnn": 64.6, "relu-rnn": 48.8, "lstm": 66.0, "relu-lstm": 50.3}
OBWB_BILLIONS = {"ffnn": "0.88", "rnn": "1.59", "relu-rnn": "0.88", "lstm": "1.60", "relu-lstm": "0.89"}


@pytest.mark.parametrize("model", [body.name for body in BODIES if body.tables])
def test_ltcb_models_have_the_paper_s_size(model: str) -> None:
    total = sum(count_parameters(load_recipe("ltcb", model=model).model, 80_000).values())
    assert total == pytest.approx(LTCB_MILLIONS[model] * 1e6, rel=0.002)


@pytest.mark.parametrize("model", [body.name for body in BODIES if body.tables])
def test_obwb_models_have_the_paper_s_size(model: str) -> None:
    total = sum(count_parameters(load_recipe("obwb", model=model).model, 793_471).values())
    assert f"{total / 1e9:.2f}" == OBWB_BILLIONS[model]


@pytest.mark.parametrize("model", [body.name for body in BODIES if body.tables])
@pytest.mark.parametrize(("learn_log_z", "num_layers"), [(False, 1), (True, 1), (False, 3)])
def test_the_count_is_what_a_model_really_has(model: str, learn_log_z: bool, num_layers: int) -> None:
    num_layers = num_layers if "num_layers" in BODIES.find(model).sizes else 0
    config = ModelConfig(model, 5, hidden_size=7, bottleneck_size=4, order=4, num_layers=num_layers)
    loss = LossConfig(learn_log_z=learn_log_z)
    built = LanguageModel(config, loss, noise.unigram(np.ones(23)))
    counts = count_parameters(config, 23, loss)
    assert sum(counts.values()) == built.num_parameters
    assert counts["embedding"] == built.embedding.numel()
    assert counts["body"] == sum(parameter.numel() for parameter in built.body.parameters())
    assert counts["output_weight"] == built.output.weight.numel()
    assert counts["output_bias"] == built.output.bias.numel()
    assert counts.get("log_z", 0) == int(learn_log_z)


def test_another_layer_adds_its_two_products_and_biases() -> None:
    one, two = (count_parameters(ModelConfig("relu-lstm", 5, 7, 4, num_layers=number), 23) for number in (1, 2))
    assert two["body"] - one["body"] == 4 * (7 * 7 + 7 * 7 + 7 + 7)


def test_a_count_takes_neither_memory_nor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch imports it, and SymPy with it, where numbers that are not there are added up: a second.
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.symbolic_shapes", None)
    counts = count_parameters(ModelConfig("rnn", embedding_size=5, hidden_size=7), 10**12)
    assert counts["output_weight"] == 7 * 10**12
