"""Runs with packed rows: float32 to the bit, the others within their bound, and each a run like any other."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from small_corpus import Watcher, small_config, small_corpus

from bnce import Corpus, UserError
from bnce.evaluation.evaluate import evaluate
from bnce.export import to_safetensors as module
from bnce.export.to_safetensors import export_rows
from bnce.runs.checkpoint import MODEL_FILE
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import load_model
from bnce.training.run import run_training

from .exported_runs import MODELS, make_run


@pytest.mark.parametrize("name", MODELS)
def test_float32_is_the_run_to_the_bit(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path, name)
    record = export_rows(run, tmp_path / "out")
    again = RunDirectory.open(tmp_path / "out")
    expected, found = load_model(run).state_dict(), load_model(again).state_dict()
    assert found.keys() == expected.keys()
    assert all(found[key].equal(expected[key]) for key in expected)
    assert set(record["max_row_error"].values()) == {0.0}
    assert again.owner == run.owner
    assert again.normaliser == run.normaliser
    assert again.target_counts.tolist() == run.target_counts.tolist()


@pytest.mark.parametrize("row_format", ["bf16", "int8"])
def test_tables_are_rounded_and_all_else_keeps_its_bits(tmp_path: Path, row_format: str) -> None:
    run = make_run(tmp_path, "relu-lstm")
    record = export_rows(run, tmp_path / "out", row_format)
    before, after = load_model(run), load_model(RunDirectory.open(tmp_path / "out"))
    for name, tensor in before.state_dict().items():
        error = float((after.state_dict()[name] - tensor).abs().max())
        if name in ("embedding", "output.weight"):
            assert error == record["max_row_error"][name]
            assert 0 < error < 0.02
        else:
            assert error == 0
    # A second export finds nothing more to round.
    export_rows(RunDirectory.open(tmp_path / "out"), tmp_path / "again", row_format)
    again = load_model(RunDirectory.open(tmp_path / "again"))
    torch.testing.assert_close(again.state_dict(), after.state_dict(), rtol=1e-6, atol=0)


@pytest.fixture(scope="module", params=["relu-lstm", "ffnn"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, Corpus]:
    """Give a run that has learned what there is to learn about its corpus."""
    directory = tmp_path_factory.mktemp("trained")
    corpus = small_corpus(directory / "corpus", num_train=12_000)
    changes = {"model": {"name": request.param}, "training": {"epochs": 3}, "optimiser": {"learning_rate": 0.3}}
    run = RunDirectory.create(directory / "run", small_config(corpus, **changes), corpus)
    run_training(run, corpus, torch.device("cpu"), Watcher())
    return run, corpus


# Shares of a perplexity. Measured, the larger of both models: bf16 0.08% of PPLn, 0.02% of PPLf; int8 0.11%, 0.05%.
@pytest.mark.parametrize(("row_format", "allowed"), [("float32", 0.0), ("bf16", 0.002), ("int8", 0.003)])
def test_what_rounding_does_to_perplexity(
    trained: tuple[RunDirectory, Corpus], tmp_path: Path, row_format: str, allowed: float
) -> None:
    run, corpus = trained
    ids = corpus.split("test")
    before = evaluate(load_model(run), ids)
    share_V = run.target_counts / run.target_counts.sum()
    assert before.ppl_f < 0.6 * np.exp(-np.log(share_V[ids]).mean()), "a model that is no unigram uses its rows"
    export_rows(run, tmp_path / "out", row_format)
    after = evaluate(load_model(RunDirectory.open(tmp_path / "out")), ids)
    if row_format == "float32":
        assert after == before
    else:
        assert before.ppl_n is not None
        assert 0 < abs(after.ppl_n / before.ppl_n - 1) <= allowed
        assert 0 < abs(after.ppl_f / before.ppl_f - 1) <= allowed


def test_the_header_says_what_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path, "lstm")
    export_rows(run, tmp_path / "out", "int8")
    with safe_open(tmp_path / "out" / MODEL_FILE, framework="pt") as file:
        header = file.metadata()
    assert (header["rows"], header["model"], float(header["log_z"])) == ("int8", "lstm", 9.0)
    assert (header["owner"], header["vocabulary"]) == (run.owner, run.vocabulary.digest)


def test_refusals_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, "lstm")
    with pytest.raises(UserError, match="Unknown row format 'int9'"):
        export_rows(run, tmp_path / "out", "int9")
    with pytest.raises(UserError, match="already exists"):
        export_rows(run, run.path)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_tensors", full)
    with pytest.raises(UserError, match="The disk is full"):
        export_rows(run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "lstm-bnce"]
