"""The search of settings: what counts as the same trial, what as a failed one, and when there is a best."""

from __future__ import annotations

import gc
import json
import math
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_corpus import VOCAB_SIZE, random_ids, small_corpus, write_corpus

from benchmarks import search
from bnce import UserError
from bnce.errors import DivergedError

SMALL = [
    "model.embedding_size=6",
    "model.hidden_size=8",
    "model.bottleneck_size=7",
    "training.batch_size=8",
    "training.max_valid_tokens=100",
]


Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "ORDER", ["model.dropout", "training.num_steps"])
    monkeypatch.setattr(search, "VALUES", {"model.dropout": [0.1], "training.num_steps": [10]})
    monkeypatch.setattr(search, "choose_device", lambda _: torch.device("cpu"))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return small_corpus(tmp_path / "corpus").directory


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Note the settings of every trial that is really trained."""
    noted: list[Any] = []
    train = search.Trainer.train

    def train_and_note(trainer: search.Trainer) -> bool:
        noted.append(trainer.config)
        return train(trainer)

    monkeypatch.setattr(search.Trainer, "train", train_and_note)
    return noted


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, corpus: Path, tmp_path: Path) -> Run:
    """Give what runs the script, and returns the trials that are then on disk."""

    def run_script(*arguments: str, corpus: Path = corpus) -> list[dict[str, Any]]:
        settings = [word for setting in SMALL for word in ("--set", setting)]
        given = ["search.py", str(corpus), "--out", str(tmp_path / "out"), "--losses", "bnce", "--tokens", "900"]
        monkeypatch.setattr(sys, "argv", [*given, *settings, *arguments])
        search.main()
        return search.read_trials(tmp_path / "out" / "trials.jsonl")

    return run_script


def test_a_search_is_run_once(run: Run, tmp_path: Path, trained: list[Any]) -> None:
    trials = run()
    assert [trial["what"] for trial in trials] == [
        "start", "start, another seed", "model.dropout = 0.1", "training.num_steps = 10",
    ]  # fmt: skip
    best = json.loads((tmp_path / "out" / "best.json").read_text())["bnce"]
    lowest = min((trial for trial in trials if trial["settings"]["training.seed"] == 1), key=lambda one: one["ppl_f"])
    assert {"training.seed": 1, **best} == lowest["settings"]
    assert run() == trials
    assert len(trained) == 4


@pytest.mark.parametrize(
    "other",
    [
        ("--tokens", "700"),
        ("--epochs", "2"),
        ("--model", "relu-rnn"),
        ("--losses", "softmax"),
        ("--set", "optimiser.clip_norm=1.0"),
    ],
)
def test_another_trial_is_not_taken_for_one_that_was(run: Run, trained: list[Any], other: tuple[str, str]) -> None:
    for arguments, num_trained in (((), 1), ((), 1), (other, 2), (other, 2)):
        run("--try", "model.dropout=0.1", *arguments)
        assert len(trained) == num_trained


def test_another_corpus_is_another_trial(run: Run, corpus: Path, tmp_path: Path, trained: list[Any]) -> None:
    shorter = small_corpus(tmp_path / "shorter", num_train=1999).directory
    splits = {"train": random_ids(2003, seed=2003), "valid": random_ids(301, seed=301)}
    with_more_words = write_corpus(tmp_path / "more", splits, vocab_size=VOCAB_SIZE + 1).directory
    for directory in (corpus, shorter, with_more_words, corpus):
        run("--try", "model.dropout=0.1", corpus=directory)
    assert len(trained) == 3


def test_older_and_torn_lines_are_no_trials(run: Run, tmp_path: Path, trained: list[Any]) -> None:
    (tmp_path / "out").mkdir()
    older = {"loss": "bnce", "settings": {**search.START, "training.seed": 1}, "ppl_f": 1.0, "seconds": 1.0}
    (tmp_path / "out" / "trials.jsonl").write_text(f'{json.dumps(older)}\n{{"loss": "bn', encoding="utf-8")
    for _ in range(2):
        trials = run("--try", "model.dropout=0.0")
        assert [trial["ppl_f"] == 1.0 for trial in trials] == [True, False]
    assert len(trained) == 1


def test_a_seed_that_is_tried_is_the_seed(run: Run, trained: list[Any]) -> None:
    (trial,) = run("--try", "training.seed=7")
    assert trial["settings"]["training.seed"] == 7
    assert [config.training.seed for config in trained] == [7]


def test_a_run_that_blows_up_is_a_failed_trial(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def blow_up(_: search.Trainer) -> bool:
        raise DivergedError("The loss is no longer finite.")

    monkeypatch.setattr(search.Trainer, "train", blow_up)
    trials = run()
    assert {(trial["ppl_f"], trial["error"]) for trial in trials} == {(None, "The loss is no longer finite.")}
    assert not (tmp_path / "out" / "best.json").exists()


def test_any_other_error_is_no_trial(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="batch_size"):
        run("--set", "training.batch_size=5000")
    assert search.read_trials(tmp_path / "out" / "trials.jsonl") == []


def test_out_of_time_there_is_no_best(
    run: Run, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--minutes", "-1") == []
    assert "bnce: no best settings, time ran out: run it again to go on." in capsys.readouterr().out
    assert not (tmp_path / "out" / "best.json").exists()
    # Nor is there one of a search that was cut short, until it has gone on to its end.
    cut_short = search.Search(corpus, tmp_path / "out", "relu-lstm", "bnce", SMALL, math.inf)
    cut_short.trial(search.START, "start")
    cut_short.deadline = -math.inf
    assert cut_short.run() is None
    cut_short.deadline = math.inf
    assert cut_short.run() is not None


def test_a_trial_leaves_no_model_behind(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def train_in_a_circle(trainer: search.Trainer) -> bool:
        trainer.observer.evaluated({"seconds": 1.0})
        trainer.itself = trainer  # type: ignore[attr-defined]
        kept.append(weakref.ref(trainer))
        return True

    monkeypatch.setattr(search.Trainer, "train", train_in_a_circle)
    gc.disable()
    try:
        run("--try", "model.dropout=0.1")
        assert [reference() for reference in kept] == [None]
    finally:
        gc.enable()
