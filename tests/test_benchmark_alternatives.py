"""benchmarks/alternatives.py: the same search for every row, then its final runs and the table."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from run_files import settings_of

import bnce

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))  # as the script runs: beside its parts

import alternatives
import alternatives_table as table
import scoring_speed

NUM_TRIALS = 5
SMALL = {
    "model.embedding_size": 8,
    "model.hidden_size": 8,
    "training.batch_size": 8,
    "training.num_steps": 5,
    "training.epochs": 1,
}


@pytest.fixture(autouse=True)
def _no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scoring be timed at once."""
    monkeypatch.setattr(scoring_speed, "SECONDS", 0.01)


@pytest.mark.usefixtures("losses_of_its_own")
def test_search_runs_and_tables(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "grid"
    words = [str(corpus), "--out", str(out), "--models", "rnn", "--rows", "softmax,bnce-200", "--seeds", "1,3"]
    words += [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    words += ["--trial-tokens", "400", "--drop-models", "--device", "cpu"]
    with pytest.raises(SystemExit, match="Some runs are not finished: the same command continues them"):
        alternatives.main([*words, "--minutes", "0"])
    assert not (out / table.TRIALS).exists(), "no run starts after its time"
    alternatives.main([*words, "--untimed"])
    assert not (out / "rnn-softmax-seed1").exists(), "timed"
    assert (out / "rnn-softmax-seed3").is_dir()
    alternatives.main(words)
    rows = json.loads((out / "alternatives.json").read_text(encoding="utf-8"))["rows"]
    assert [row["alternative"] for row in rows] == ["softmax", "bnce-200"]
    for row in rows:
        assert row["seeds"] == [1, 3]
        assert len(row["trials"]) == NUM_TRIALS, "the same for every loss"
        assert row["cpu_scoring_words_per_second"] > 0
        assert row["ppl_f"] > 1
        assert (row["ppl_n"] is None) == (row["alternative"] == "softmax")
        summary = json.loads((out / row["runs"][0] / "summary.json").read_text(encoding="utf-8"))
        assert row["words_per_second"] == summary["words_per_second"], "of the run that had the machine to itself"
    assert rows[0]["speedup_over_softmax"] == 1
    final, trial = settings_of(out / "rnn-bnce-200-seed3"), settings_of(out / "trials" / "rnn-softmax-1")
    assert (final["loss"]["num_noise"], final["training"]["seed"]) == (200, 3)
    assert {f"optimiser.{name}": value for name, value in final["optimiser"].items()}.items() >= {
        name: value for name, value in rows[1]["chosen"].items() if name.startswith("optimiser.")
    }.items()
    assert (trial["training"]["max_train_tokens"], trial["training"]["max_test_tokens"]) == (400, 1000)
    assert final["training"]["max_test_tokens"] == 0
    assert not list(out.glob("**/model.safetensors")), "models are dropped"
    assert "| adaptive B-NCE, K = 200 |" in (out / "alternatives.md").read_text(encoding="utf-8")
    assert (out / "alternatives-rnn.svg").stat().st_size > 1000
    capsys.readouterr()
    alternatives.main(words)
    assert json.loads((out / "alternatives.json").read_text(encoding="utf-8"))["rows"] == rows
    assert not capsys.readouterr().err, "nothing is trained or timed again"


def test_validation_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates are tried first, then the loss's own setting with the best of them."""
    tried: list[dict[str, Any]] = []

    def train(
        self: object, name: str, model: str, loss: str, settings: dict[str, Any], *, is_timed: bool = False
    ) -> bool:
        tried.append({name: value for name, value in settings.items() if not name.startswith("training.")})
        return True

    def perplexity(path: Path) -> float:
        far = abs(tried[-1].get("optimiser.learning_rate", 0.04) - 0.08)
        return 100 + 100 * far + abs(tried[-1].get("loss.penalty", 0.1) - 0.02)

    monkeypatch.setattr(alternatives.Comparison, "train", train)
    monkeypatch.setattr(alternatives, "lowest_perplexity", perplexity)
    comparison = alternatives.Comparison(tmp_path, tmp_path)
    (bnce_row, chunk_softmax) = alternatives.chosen_rows("bnce,chunk-softmax")
    comparison.search("relu-lstm", bnce_row)
    assert [settings.get(table.BODY_RATE) for settings in tried] == [None, 0.002, 0.008, 0.004, 0.016]
    tried.clear()
    chosen = comparison.search("relu-lstm", chunk_softmax)
    assert chosen == {"optimiser.learning_rate": 0.08, table.BODY_RATE: 0.008, "loss.penalty": 0.02}
    assert len(tried) == NUM_TRIALS
    assert all(settings["optimiser.learning_rate"] == 0.08 for settings in tried[3:])


@pytest.mark.usefixtures("losses_of_its_own")
def test_every_loss_has_its_row() -> None:
    alternatives.register()
    assert {row.loss for row in table.ALTERNATIVES} == set(bnce.LOSSES) - {"chunk"}, "a mix of two that have a row"
    for names in ([row.name for row in table.ALTERNATIVES], [row.shown for row in table.ALTERNATIVES]):
        assert len(set(names)) == len(names)
    with pytest.raises(SystemExit, match="No row is called bnec"):
        alternatives.chosen_rows("bnce,bnec")


def test_the_constant_is_fitted_to_validation_text(tmp_path: Path) -> None:
    """PPLn with a constant that is 0.1 below the mean of ln Z(context) on test is too low by that."""
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "ppl_f": 90.0, "log_z_mean": 7.0}\n{"step": 2, "ppl_f": 80.0, "log_z_mean": 8.9}\n'
    )
    (tmp_path / "evaluation.json").write_text('{"ppl_f": 100.0, "ppl_n": 90.0, "log_z_mean": 9.0}')
    assert table._fitted(tmp_path) == pytest.approx(100.0 * math.exp(-0.1))
    (tmp_path / "evaluation.json").write_text('{"ppl_f": 100.0}')
    assert table._fitted(tmp_path) is None
