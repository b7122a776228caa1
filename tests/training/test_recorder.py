"""TensorBoard events: what is written, what a resume hides, and what becomes of a run whose events do not fit."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import pytest
from command import happening_in_step
from run_files import metrics_of
from small_training import resume_small, train_small

from bnce import Corpus, UserError

Scalars = dict[str, list[tuple[int, float]]]


def read_events(directory: Path) -> Scalars:
    """Read scalars back with TensorBoard itself."""
    with warnings.catch_warnings():
        # Its imports warn of their dependencies' futures.
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(directory))
        events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


def scalars_of(run: Path) -> Scalars:
    """Read the scalars of a run's training."""
    return read_events(run / "tensorboard")


def test_tensorboard_reads_the_metrics_back(place: Path, corpus: Corpus) -> None:
    run = place / "run"
    train_small(run, corpus, training={"evaluations_per_epoch": 3})
    records = metrics_of(run)
    events = scalars_of(run)
    assert len(records) == 6
    assert set(events) == set(records[0]) - {"step"}
    for tag, points in events.items():
        assert points == [(record["step"], pytest.approx(record[tag], rel=1e-6)) for record in records]


def test_tensorboard_has_the_test_in_detail(place: Path, corpus: Corpus) -> None:
    run = place / "run"
    train_small(run, corpus)
    resume_small(run)  # measured twice, told once
    scalars = read_events(run / "tensorboard" / "test")
    detail = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))["detail"]
    for kind in ("ppl_n", "ppl_f"):
        tags = {"1-10": "1-10", "11-100": "11-100", "<unk>": "unk"}
        assert len(detail["by_frequency"]) == len(tags)
        for group in detail["by_frequency"]:
            found = scalars[f"test_by_frequency_rank/{kind}/{tags[group['name']]}"]
            assert found == [(100, pytest.approx(group[kind], rel=1e-6))]
        firsts = [int(group["name"].split("-")[0].rstrip("+")) for group in detail["by_position"]]
        curve = scalars[f"test_by_position/{kind}"]
        assert curve == [
            (first, pytest.approx(group[kind], rel=1e-6))
            for first, group in zip(firsts, detail["by_position"], strict=True)
        ]


def test_a_softmax_run_has_no_events_with_the_constant(place: Path, corpus: Corpus) -> None:
    train_small(place / "run", corpus, loss={"name": "softmax"})
    events = scalars_of(place / "run")
    assert "ppl_n" not in events
    assert "ppl_f" in events


def test_events_beyond_a_resumed_step_are_hidden(place: Path, corpus: Corpus) -> None:
    run = place / "run"
    train_small(run, corpus, training={"evaluations_per_epoch": 5})
    # As if it had been killed after step 90: the evaluation at 100 is made again.
    max(run.glob("state-*.safetensors")).unlink()
    resume_small(run)
    assert [step for step, _ in scalars_of(run)["ppl_f"]] == list(range(10, 101, 10))


def test_without_tensorboard_nothing_is_trained(place: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match="Training needs the package 'tensorboard', which is not installed"):
        train_small(place / "run", corpus)
    assert list(place.iterdir()) == []


def test_the_writer_is_closed_when_training_fails(place: Path, corpus: Corpus) -> None:
    def fail() -> None:
        raise UserError("enough")

    with pytest.raises(UserError, match="enough"), happening_in_step(51, fail):
        train_small(place / "run", corpus)
    ((step, _),) = scalars_of(place / "run")["ppl_f"]
    assert step == 50
