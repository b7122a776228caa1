"""A loss, a body and an optimiser, each one file and one record: every command knows them. A mere name is refused."""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_corpus import small_corpus
from typer.testing import CliRunner

from bnce import BODIES, LOSSES, OPTIMISERS, OutputLayer, UserError
from bnce.cli import app
from bnce.cli.completion import complete_setting
from bnce.config import LossConfig, ModelConfig, OptimiserConfig
from bnce.export.bodies import refuse_unknown_body
from bnce.losses import count_targets, get_loss
from bnce.models import architecture, build_body
from bnce.models.recurrent import Recurrent
from bnce.optimisers import build_optimiser
from bnce.recipes.recipe import load_recipe
from bnce.report.names import name_loss, name_model
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import build_model, load_model
from bnce.runs.resuming import advise_lower_rates

from . import pretend

SIZES = ("model.embedding_size=6", "model.hidden_size=8", "training.batch_size=8", "training.num_steps=5")
SMALL = [*SIZES, "optimiser.name=sign", "training.epochs=1", "optimiser.warmup_steps=5"]
SETTINGS = [word for setting in SMALL for word in ("--set", setting)]


def bnce(*arguments: object) -> str:
    """Run a command that must succeed, and give what it printed."""
    outcome = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False, env={"COLUMNS": "80"})
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def in_one_line(page: str) -> str:
    """Join what is wrapped, also at a hyphen."""
    return " ".join(page.split()).replace("- ", "-")


@pytest.fixture(scope="module", autouse=True)
def _pretend_kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write the three files where Python finds them, and register each record by one call."""
    directory = tmp_path_factory.mktemp("pretend")
    pretend.write(directory)
    registries: list[Any] = [LOSSES, BODIES, OPTIMISERS]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        for registry, name in zip(registries, ("loss", "body", "optimiser"), strict=True):
            patch.setattr(registry, "_kinds", dict(registry._kinds))
            registry.register(importlib.import_module(f"pretend_{name}").RECORD)
        yield
    for name in ("loss", "body", "optimiser"):
        del sys.modules[f"pretend_{name}"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_corpus(tmp_path_factory.mktemp("corpora") / "small").directory


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with all three."""
    out = tmp_path_factory.mktemp("runs") / "pretend"
    kinds = ("--model", "gru", "--loss", "batch-softmax")
    bnce("train", "wiki", *kinds, "--corpus", corpus, "--out", out, *SETTINGS, "--device", "cpu", "--json")
    return out


def test_train_builds_what_the_records_name(run: Path) -> None:
    config = RunDirectory.open(run).config
    assert (config.model.name, config.loss.name, config.optimiser.name) == ("gru", "batch-softmax", "sign")
    # A new recurrent name used to train a tanh RNN, and a new optimiser SGD.
    assert isinstance(load_model(RunDirectory.open(run)).body.cell, torch.nn.GRU)
    model = build_model(RunDirectory.open(run))
    assert type(build_optimiser(model, config.optimiser)).__name__ == "Sign"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished"


def test_evaluate_gives_no_ppl_n_to_a_loss_that_does_not_normalise_itself(run: Path, corpus: Path) -> None:
    """Every loss but softmax used to count as one that does, and would have been served unnormalised."""
    record = json.loads(bnce("evaluate", run, "--corpus", corpus, "--device", "cpu", "--json"))
    assert record["ppl_n"] is None
    assert math.isfinite(record["ppl_f"])
    with pytest.raises(UserError, match="softmax"):
        bnce("score", run, run / "vocab.txt", "--mode", "unnormalised", "--device", "cpu")


def test_compare_names_it_after_those_of_the_paper(run: Path, corpus: Path, tmp_path: Path) -> None:
    paper = tmp_path / "lstm"
    sizes = [word for setting in (*SIZES, "training.epochs=1") for word in ("--set", setting)]
    options = ("--model", "lstm", "--loss", "bnce", "--corpus", corpus, "--out", paper, "--device", "cpu", "--json")
    bnce("train", "wiki", *options, *sizes)
    rows = json.loads(bnce("compare", run, paper, "--json"))["rows"]
    assert [row["label"] for row in rows] == ["LSTM (B-NCE)", "GRU (batch softmax)"]
    bnce("compare", run, paper, "--out", tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    of_paper, other = dict.fromkeys(re.findall(r'class="mark" style="color:(#\w{6})"', page))
    assert of_paper == "#0072b2" != other
    row = next(line for line in (tmp_path / "report" / "table.md").read_text().splitlines() if "batch softmax" in line)
    assert row.split("|")[2].strip() == "---"


def test_info_describes_it(run: Path) -> None:
    record = json.loads(bnce("info", "wiki", "--model", "gru", "--loss", "batch-softmax", *SETTINGS, "--json"))
    assert record["architecture"] == "6–2×8(R)–V"
    assert record["settings"]["optimiser"]["name"] == "sign"
    assert json.loads(bnce("info", run, "--json"))["model"] == "gru"


def test_info_checks_the_loss() -> None:
    checks = {
        entry["name"]: entry for entry in json.loads(bnce("info", "--check", "--device", "cpu", "--json"))["checks"]
    }
    assert checks["loss batch-softmax"]["well"], checks["loss batch-softmax"]


def test_help_and_completion_name_it() -> None:
    page = in_one_line(bnce("train", "--help"))
    assert "gru (two GRU layers)." in page
    assert "batch-softmax (a softmax over the batch)." in page
    assert "sign (steps of one size)." in page
    page = in_one_line(bnce("info", "--help"))
    assert "relu-lstm, transformer, gru." in page
    assert "adaptive-softmax, batch-softmax." in page
    names = ("sgd", "rowwise", "rowwise-adam", "sign")
    assert complete_setting("optimiser.name=") == [f"optimiser.name={name}" for name in names]


@pytest.mark.parametrize("target", ["onnx", "transformers"])
def test_an_export_that_does_not_know_the_body_is_refused(run: Path, target: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"The model 'gru' of '{run}' cannot be exported to {target}, only ffnn, rnn"):
        bnce("export", run, "--to", target, "--out", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def unrecorded(build: Callable[[str], object]) -> str:
    with pytest.raises(UserError) as caught:
        build("lstmm")
    return str(caught.value)


NOISE = np.ones(5)


@pytest.mark.parametrize(
    ("kind", "build"),
    {
        "model config": ("model", ModelConfig),
        "loss config": ("loss", LossConfig),
        "optimiser config": ("optimiser", OptimiserConfig),
        "recipe's model": ("model", lambda name: load_recipe("wiki", model=name)),
        "recipe's loss": ("loss", lambda name: load_recipe("wiki", loss=name)),
        "recipe's optimiser": ("optimiser", lambda name: load_recipe("wiki", settings=[f"optimiser.name={name}"])),
        "body": ("model", lambda name: build_body(SimpleNamespace(name=name))),  # type: ignore[arg-type]
        "cell": ("recurrent cell", lambda name: Recurrent(name, 2, 2, None, 0.0)),
        "architecture": ("model", lambda name: architecture(SimpleNamespace(name=name))),  # type: ignore[arg-type]
        "loss": ("loss", get_loss),
        "positions": ("loss", lambda name: count_targets(name, torch.ones(1, 1), None, -100, 0)),
        "layer": ("loss", lambda name: OutputLayer(2, 5, NOISE, loss=name)),
        "optimiser": ("optimiser", lambda name: build_optimiser(None, SimpleNamespace(name=name))),  # type: ignore[arg-type]
        "advice": (
            "optimiser",
            lambda name: advise_lower_rates(Path(), SimpleNamespace(name=name), None, False),  # type: ignore[arg-type]
        ),
        "model in a report": ("model", lambda name: name_model({"name": name})),
        "loss in a report": ("loss", lambda name: name_loss({"name": name})),
        "train --model": ("model", lambda name: bnce("train", "wiki", "--model", name, "--corpus", "x")),
        "train --loss": ("loss", lambda name: bnce("train", "wiki", "--loss", name, "--corpus", "x")),
        "info --model": ("model", lambda name: bnce("info", "wiki", "--model", name)),
        "export": (
            "model",
            lambda name: refuse_unknown_body(
                SimpleNamespace(config=SimpleNamespace(model=SimpleNamespace(name=name))),  # type: ignore[arg-type]
                "onnx",
            ),
        ),
    }.values(),
)
def test_a_name_without_a_record_is_refused_everywhere(kind: str, build: Callable[[str], object]) -> None:
    assert unrecorded(build).startswith(f"Unknown {kind} 'lstmm': choose one of ")


def test_a_loss_without_losses_per_position_says_so() -> None:
    with pytest.raises(UserError, match=r'^The loss batch-softmax has no losses per position: use reduction="mean" or'):
        OutputLayer(3, 4, [1] * 4, "batch-softmax", reduction="none")
