"""Runs with packed rows: float32 to the bit, the others within their bound, and each a run like any other."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import Refused, run_command
from run_files import MODEL_FILE
from safetensors import safe_open
from safetensors.torch import load_file
from small_corpus import small_corpus, small_run
from small_training import train_small

from bnce import Corpus, evaluate
from bnce.runs.directory import Run
from bnce.runs.model_file import load_model

from .exported_runs import MODELS


def export(run: Path, out: Path, rows: str = "float32") -> dict[str, Any]:
    return run_command("export", run, "--to", "safetensors", "--rows", rows, "--out", out, "--json").json


def header_of(run: Path) -> dict[str, str]:
    with safe_open(run / MODEL_FILE, framework="pt") as file:
        return dict(file.metadata())


def tensors_of(run: Path) -> dict[str, torch.Tensor]:
    """Give the tensors that a run is opened with, its tables unpacked."""
    tensors: dict[str, torch.Tensor] = load_model(Run.open(run)).state_dict()
    return tensors


@pytest.mark.parametrize("name", MODELS)
def test_float32_is_the_run_to_the_bit(tmp_path: Path, name: str) -> None:
    run = small_run(tmp_path / "run", name, order=3)
    record = export(run, tmp_path / "out")
    expected, found = load_file(run / MODEL_FILE), load_file(tmp_path / "out" / MODEL_FILE)
    assert found.keys() == expected.keys()
    assert all(found[key].equal(expected[key]) for key in expected)
    assert set(record["max_row_error"].values()) == {0.0}
    for name in ("run.json", "counts.npy", "config.toml", "vocab.txt"):
        assert (tmp_path / "out" / name).read_bytes() == (run / name).read_bytes()


@pytest.mark.parametrize("row_format", ["bf16", "int8"])
def test_tables_are_rounded_and_all_else_keeps_its_bits(tmp_path: Path, row_format: str) -> None:
    run = small_run(tmp_path / "run", "relu-lstm")
    record = export(run, tmp_path / "out", row_format)
    before, after = tensors_of(run), tensors_of(tmp_path / "out")
    for name, tensor in before.items():
        error = float((after[name] - tensor).abs().max())
        if name in ("embedding", "output.weight"):
            assert error == record["max_row_error"][name]
            assert 0 < error < 0.02
        else:
            assert error == 0
    # A second export finds nothing more to round.
    export(tmp_path / "out", tmp_path / "again", row_format)
    torch.testing.assert_close(tensors_of(tmp_path / "again"), after, rtol=1e-6, atol=0)


@pytest.fixture(scope="module", params=["relu-lstm", "ffnn"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Corpus]:
    """Give a run that has learned what there is to learn about its corpus."""
    directory = tmp_path_factory.mktemp("trained")
    corpus = small_corpus(directory / "corpus", num_train=12_000)
    changes = {"model": {"name": request.param}, "training": {"epochs": 3}, "optimiser": {"learning_rate": 0.3}}
    train_small(directory / "run", corpus, **changes)
    return directory / "run", corpus


# Shares of a perplexity. Measured, the larger of both models: bf16 0.08% of PPLn, 0.02% of PPLf; int8 0.11%, 0.05%.
@pytest.mark.parametrize(("row_format", "allowed"), [("float32", 0.0), ("bf16", 0.002), ("int8", 0.003)])
def test_what_rounding_does_to_perplexity(
    trained: tuple[Path, Corpus], tmp_path: Path, row_format: str, allowed: float
) -> None:
    run, corpus = trained
    ids, counts = corpus.split("test"), np.load(run / "counts.npy")
    before = evaluate(run, corpus=corpus, device="cpu")
    share_V = counts / counts.sum()
    assert before.ppl_f < 0.6 * np.exp(-np.log(share_V[ids]).mean()), "a model that is no unigram uses its rows"
    export(run, tmp_path / "out", row_format)
    after = evaluate(tmp_path / "out", corpus=corpus, device="cpu")
    if row_format == "float32":
        assert after == before
    else:
        assert before.ppl_n is not None
        assert 0 < abs(after.ppl_n / before.ppl_n - 1) <= allowed
        assert 0 < abs(after.ppl_f / before.ppl_f - 1) <= allowed


def test_the_header_says_what_it_is(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    export(run, tmp_path / "out", "int8")
    header = header_of(tmp_path / "out")
    assert header["rows"] == "int8"
    assert header["run"] == json.loads((run / "run.json").read_text(encoding="utf-8"))["sha256"]


def test_refusals_leave_nothing(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(tmp_path / "run")
    command = ["export", run, "--to", "safetensors", "--out"]
    assert "Unknown row format 'int9'" in refused(*command, tmp_path / "out", "--rows", "int9")
    assert "already exists" in refused(*command, run)

    def full(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("safetensors.torch.serialize_file", full)
    assert "The disk is full" in refused(*command, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
