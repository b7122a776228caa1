"""TensorBoard events: what is written, what a resume hides, and what becomes of a run whose events do not fit."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from small_corpus import Watcher, small_config, small_corpus

from bnce import Corpus, UserError
from bnce.reading import read_object
from bnce.runs.checkpoint import state_files
from bnce.runs.directory import RunDirectory
from bnce.runs.metrics import read_metrics
from bnce.training.plan import create_run
from bnce.training.run import run_training
from bnce.training.trainer import Trainer

CPU = torch.device("cpu")


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return small_corpus(tmp_path / "corpus")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give a directory for runs alone, so that whatever is left behind shows."""
    directory = tmp_path / "place"
    directory.mkdir()
    return directory


def read_events(run: RunDirectory) -> dict[str, list[tuple[int, float]]]:
    """Read a run's scalars back with TensorBoard itself."""
    with warnings.catch_warnings():
        # Its imports warn of their dependencies' futures.
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(run.path / "tensorboard"))
        events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def read_test_events(run: RunDirectory) -> tuple[dict[str, list[tuple[int, float]]], str]:
    """Read the events of the test back: scalars, and the text of the worst sentences."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(run.path / "tensorboard" / "test"))
        events.Reload()
    scalars = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    (text,) = events.Tensors("test/worst_sentences/text_summary")
    return scalars, text.tensor_proto.string_val[0].decode()


def test_tensorboard_reads_the_metrics_back(place: Path, corpus: Corpus) -> None:
    run = create_run(place / "run", small_config(corpus, training={"evaluations_per_epoch": 3}), corpus)
    run_training(run, corpus, CPU, Watcher())
    events, records = read_events(run), read_metrics(run.path).records
    assert set(events) == set(records[0]) - {"step"}
    for tag, points in events.items():
        assert points == [(record["step"], pytest.approx(record[tag], rel=1e-6)) for record in records]


def test_tensorboard_has_the_test_in_detail(place: Path, corpus: Corpus) -> None:
    run = create_run(place / "run", small_config(corpus), corpus)
    run_training(run, corpus, CPU, Watcher())
    run_training(run, corpus, CPU, Watcher(), resume=True)  # measured twice, told once
    scalars, worst = read_test_events(run)
    detail = read_object(run.path / "evaluation.json")["detail"]
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
    assert len(worst.splitlines()) == 2 + len(detail["worst_sentences"]) > 3
    first = detail["worst_sentences"][0]
    assert f"| {first['mean_loss_nats']:.2f} | {first['words'][0]} *{first['losses_nats'][0]:.1f}*" in worst
    assert "&lt;/s&gt; *" in worst


def test_a_softmax_run_has_no_events_with_the_constant(place: Path, corpus: Corpus) -> None:
    run = create_run(place / "run", small_config(corpus, loss={"name": "softmax"}), corpus)
    run_training(run, corpus, CPU, Watcher())
    events = read_events(run)
    assert "ppl_n" not in events
    assert "ppl_f" in events


def test_events_beyond_a_resumed_step_are_hidden(place: Path, corpus: Corpus) -> None:
    run = create_run(place / "run", small_config(corpus, training={"evaluations_per_epoch": 5}), corpus)
    run_training(run, corpus, CPU, Watcher())
    # As if it had been killed after step 90: the evaluation at 100 is made again.
    state_files(run.path)[-1].unlink()
    run_training(run, corpus, CPU, Watcher(), resume=True)
    assert [step for step, _ in read_events(run)["ppl_f"]] == list(range(10, 101, 10))


def test_the_writer_is_closed_when_training_fails(place: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Trainer, should_stop: Any) -> bool:
        self.save()
        self.observer.evaluated({"step": 3, "ppl_f": 5.0})
        raise UserError("enough")

    monkeypatch.setattr(Trainer, "train", fail)
    run = create_run(place / "run", small_config(corpus), corpus)
    with pytest.raises(UserError, match="enough"):
        run_training(run, corpus, CPU, Watcher())
    assert read_events(run) == {"ppl_f": [(3, 5.0)]}
