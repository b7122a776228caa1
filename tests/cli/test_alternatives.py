"""`bnce experiment alternatives`: the same search for every loss, then the final runs and the tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import Command, settings

from bnce import LOSSES
from bnce.config import read_config
from bnce.kinds.alternatives import ALTERNATIVES
from bnce.report import alternatives as report
from bnce.runs.checkpoint import MODEL_FILE
from bnce.training import alternatives

NUM_TRIALS = 5
Refused = Callable[..., str]


@pytest.fixture(autouse=True)
def _no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scoring be timed at once."""
    from bnce.scoring import speed

    monkeypatch.setattr(speed, "SECONDS", 0.01)


def test_search_runs_and_tables(bnce: Command, corpus: Path, place: Path, prepared_anew: Callable[..., Path]) -> None:
    out = place / "grid"
    words = ["experiment", "alternatives", "--corpus", corpus, "--out", out, "--models", "rnn", *settings()]
    words += ["--losses", "softmax,bnce-200", "--trial-tokens", 400, "--seeds", "1,3", "--no-keep-models"]
    outcome = bnce(*words, "--json")
    assert outcome.status == 0, outcome.stderr
    rows = json.loads(outcome.stdout)["rows"]
    assert [row["alternative"] for row in rows] == ["softmax", "bnce-200"]
    for row in rows:
        assert row["seeds"] == [1, 3]
        assert len(row["trials"]) == NUM_TRIALS, "the same for every loss"
        assert row["cpu_scoring_words_per_second"] > 0
        assert row["ppl_f"] > 1
        assert (row["ppl_n"] is None) == (row["alternative"] == "softmax")
    assert rows[0]["speedup_over_softmax"] == 1
    config = read_config(out / "rnn-bnce-200-seed3" / "config.toml")
    assert (config.loss.num_noise, config.training.seed) == (200, 3)
    trial = read_config(out / "trials" / "rnn-softmax-1" / "config.toml")
    assert (trial.training.max_train_tokens, trial.training.max_test_tokens) == (400, alternatives.UNREAD_TEST)
    assert not list(out.glob(f"**/{MODEL_FILE}")), "models are dropped"
    table = (out / "alternatives.md").read_text(encoding="utf-8")
    assert "| adaptive B-NCE, K = 200 |" in table
    assert (out / "alternatives-rnn.svg").stat().st_size > 1000
    again = bnce(*words, "--json")
    assert json.loads(again.stdout)["rows"] == rows, "nothing is trained or timed again"
    words[3] = prepared_anew(valid="test")
    told = bnce(*words, "--losses", "bnce")
    assert told.status == 2
    assert "has another validation text than the run" in told.stderr


def test_several_processes_search_and_train_the_seeds_that_are_not_timed(
    bnce: Command, corpus: Path, place: Path, copies_started: list[int]
) -> None:
    words = ["experiment", "alternatives", "--corpus", corpus, "--models", "rnn", *settings(), "--seeds", "1,2"]
    words += ["--losses", "bnce,chunk-bnce", "--trial-tokens", 400, "--json"]
    together = bnce(*words, "--out", place / "together", "--processes", 2)
    assert together.status == 0, together.stderr
    copies = {line[:4] for line in together.stderr.splitlines() if line.startswith("[")}
    assert copies <= {"[1] ", "[2] "}, "one that starts late may find no trial left"
    assert copies_started == [2]
    rows, single = (json.loads(made.stdout)["rows"] for made in (together, bnce(*words, "--out", place / "single")))
    assert [row["trials"] for row in rows] == [row["trials"] for row in single]
    assert [(row["chosen"], row["ppl_f"]) for row in rows] == [(row["chosen"], row["ppl_f"]) for row in single]
    finals = [line for line in together.stderr.splitlines() if " step 80," in line]  # trials have 10 steps
    by_copies, alone = ([line for line in finals if line.startswith("[") is copied] for copied in (True, False))
    assert [line.partition(" step")[0] for line in alone] == ["rnn bnce", "rnn chunk-bnce"], "the first seed's"
    assert len(by_copies) == 2, "the second seed's"
    timed = {path.parent.name for path in (place / "together").glob(f"*/{alternatives.SCORING_FILE}")}
    assert timed == {"rnn-bnce-seed1", "rnn-chunk-bnce-seed1"}
    assert len(list((place / "together").glob(f"*/{MODEL_FILE}"))) == 4, "models are kept"


def test_speeds_are_of_runs_that_were_timed(bnce: Command, corpus: Path, place: Path) -> None:
    out = place / "grid"
    words = ["experiment", "alternatives", "--corpus", corpus, "--out", out, "--models", "rnn", *settings()]
    found = json.loads(bnce(*words, "--losses", "bnce", "--trial-tokens", 400, "--seeds", "1,3", "--json").stdout)
    summaries = [
        json.loads((out / f"rnn-bnce-seed{seed}" / "summary.json").read_text(encoding="utf-8")) for seed in (1, 3)
    ]
    assert found["rows"][0]["words_per_second"] == summaries[0]["words_per_second"] != summaries[1]["words_per_second"]


def test_validation_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates are tried first, then the loss's own setting with the best of them."""
    tried: list[dict[str, float]] = []

    def train(self: alternatives.Comparing, row: alternatives.PlannedRow, *, measured: bool) -> bool:
        pairs = (setting.split("=") for setting in row.settings)
        tried.append({name: float(value) for name, value in pairs if not name.startswith("training.")})
        return True

    def perplexity(path: Path) -> float:
        settings = tried[-1]
        far = abs(settings.get("optimiser.learning_rate", 0.04) - 0.08)
        return 100 + 100 * far + abs(settings.get("loss.penalty", 0.1) - 0.02)

    monkeypatch.setattr(alternatives.Comparing, "_train", train)
    monkeypatch.setattr(alternatives, "valid_perplexity", perplexity)
    from bnce.recipes.recipe import load_recipe

    comparing = alternatives.Comparing(
        out=tmp_path,
        corpus=None,  # type: ignore[arg-type]
        device=None,  # type: ignore[arg-type]
        make_config=lambda row: load_recipe("wiki", model=row.model, loss=row.loss, settings=list(row.settings)),
        watch=None,  # type: ignore[arg-type]
        note_failure=lambda name, why: None,
        measure=lambda path: {},
        trial_tokens=0,
        seeds=[1],
    )
    by_name = {kind.name: kind for kind in ALTERNATIVES}
    comparing.search("relu-lstm", by_name["bnce"])
    assert [settings.get("optimiser.body_learning_rate") for settings in tried] == [None, 0.002, 0.008, 0.004, 0.016]
    tried.clear()
    chosen = comparing.search("relu-lstm", by_name["chunk-softmax"])
    assert chosen == {
        "optimiser.learning_rate": 0.08,
        "optimiser.body_learning_rate": 0.008,
        "loss.penalty": 0.02,
    }
    assert len(tried) == NUM_TRIALS
    assert all(settings["optimiser.learning_rate"] == 0.08 for settings in tried[3:])


def test_every_loss_has_its_row() -> None:
    assert {kind.loss for kind in ALTERNATIVES} == set(LOSSES.names)
    assert len({kind.name for kind in ALTERNATIVES}) == len(ALTERNATIVES)
    assert len({kind.shown for kind in ALTERNATIVES}) == len(ALTERNATIVES)


def test_what_does_not_belong_together_is_refused(refused: Refused, corpus: Path, place: Path) -> None:
    words = ["--corpus", corpus, "--out", place / "grid"]
    assert "Unknown alternative 'bnec'" in refused("experiment", "alternatives", *words, "--losses", "bnec")
    assert "--seeds received 'one'" in refused(
        "experiment", "alternatives", *words, "--losses", "bnce", "--seeds", "one"
    )
    assert "has no trials" in refused("experiment", "ltcb", *words, "--seeds", "1")


def test_no_run_starts_after_its_time(
    bnce: Command, corpus: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alternatives, "time", SimpleNamespace(monotonic=lambda: math.inf))
    words = ["--corpus", corpus, "--out", place / "grid", "--models", "rnn", "--losses", "bnce", "--budget", 1]
    outcome = bnce("experiment", "alternatives", *words, *settings())
    assert outcome.status == 1
    assert "the same command continues them" in outcome.stderr
    assert not (place / "grid" / "trials").exists()


def test_the_constant_is_fitted_to_validation_text(tmp_path: Path) -> None:
    """PPLn with a constant that is 0.1 below the mean of ln Z(context) on test is too low by that."""
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "ppl_f": 90.0, "log_z_mean": 7.0}\n{"step": 2, "ppl_f": 80.0, "log_z_mean": 8.9}\n'
    )
    (tmp_path / "evaluation.json").write_text('{"ppl_f": 100.0, "ppl_n": 90.0, "log_z_mean": 9.0}')
    assert report._fitted(tmp_path) == pytest.approx(100.0 * math.exp(-0.1))
    (tmp_path / "evaluation.json").write_text('{"ppl_f": 100.0}')
    assert report._fitted(tmp_path) is None
