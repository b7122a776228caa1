"""A whole run: the files it leaves, and what is refused before anything is written."""

from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from small_corpus import VOCAB_SIZE, Watcher, random_ids, small_config, small_corpus, write_corpus

from bnce import Corpus, UserError
from bnce.errors import NotFiniteError, OutOfMemoryError
from bnce.evaluation.evaluate import Evaluation, evaluate
from bnce.machine.devices import describe_device
from bnce.runs import checkpoint
from bnce.runs.directory import RunDirectory, hold_run
from bnce.runs.model_file import load_model, read_weights
from bnce.training import run as training_run
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


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("loss", ["softmax", "snce", "bnce", "chunk-bnce"])
def test_training_on_a_part_is_training_on_a_corpus_that_is_that_part(place: Path, tmp_path: Path, loss: str) -> None:
    whole = {"train": random_ids(4000), "valid": random_ids(301, seed=2), "test": random_ids(257, seed=3)}
    whole["train"][2003:] = VOCAB_SIZE - 1  # what follows the part is of other words
    part = {**whole, "train": whole["train"][:2003]}
    models, figures = [], []
    for name, splits, limit in (("cut", whole, 2003), ("part", part, 0)):
        corpus = write_corpus(tmp_path / name, splits)
        settings = {"batch_size": 8, "num_steps": 5, "epochs": 1, "max_train_tokens": limit}
        config = small_config(corpus, loss={"name": loss, "num_noise": 5 * (loss == "snce")}, training=settings)
        run = create_run(place / name, config, corpus)
        run_training(run, corpus, CPU, Watcher())
        models.append(read_weights(run)[0])
        figures.append(read_json(run.path / "evaluation.json"))
    assert figures[0] == figures[1]
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())


def test_a_run_counts_exactly_the_targets_it_trains_on(place: Path, corpus: Corpus) -> None:
    # 1,003 tokens in 8 streams: the last three make no full row and are never a target.
    training = {"batch_size": 8, "num_steps": 5, "max_train_tokens": 1003}
    run = create_run(place / "run", small_config(corpus, training=training), corpus)
    assert run.target_counts.tolist() == np.bincount(corpus.split("train")[:1000], minlength=VOCAB_SIZE).tolist()


def test_a_run_leaves_what_its_directory_promises(place: Path, corpus: Corpus) -> None:
    watcher = Watcher()
    run = create_run(place / "run", small_config(corpus), corpus)
    summary = run_training(run, corpus, CPU, watcher, command="bnce train small")
    assert {path.name for path in run.path.iterdir()} == {
        "config.toml", "vocab.txt", "counts.npy", "normaliser.json", "summary.json", "metrics.jsonl",
        "evaluation.json", "model.safetensors", "state-000000000050.safetensors", "state-000000000100.safetensors",
        "spelling.safetensors", "tensorboard",
    }  # fmt: skip
    assert read_json(run.path / "summary.json") == summary
    assert summary["status"] == "finished"
    assert (summary["step"], summary["tokens"], summary["epochs"]) == (100, 4000, 2.0)
    model = load_model(run)
    assert summary["num_parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert summary["num_table_parameters"] == 30 * (6 + 7 + 1)
    assert (summary["vocab_size"], summary["vocabulary_digest"]) == (30, corpus.vocabulary.digest)
    assert (summary["command"], summary["seed"]) == ("bnce train small", 1)
    assert summary["words_per_second"] == pytest.approx(4000 / summary["train_seconds"])
    result = evaluate(model, corpus.split("test"), known=run.word_counts)
    assert read_json(run.path / "evaluation.json") == {"split": "test", **result.to_dict()}
    assert [record["step"] for record in watcher.records] == [50, 100]


def test_equal_runs_leave_equal_bytes(place: Path, corpus: Corpus) -> None:
    models = []
    for name in ("first", "second"):
        run = create_run(place / name, small_config(corpus), corpus)
        run_training(run, corpus, CPU, Watcher())
        models.append((run.path / checkpoint.MODEL_FILE).read_bytes())
    assert models[0] == models[1]


def test_a_corpus_may_have_no_test_split(tmp_path: Path, place: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", {"train": random_ids(400), "valid": random_ids(50)})
    run = create_run(place / "run", small_config(corpus), corpus)
    assert run_training(run, corpus, CPU, Watcher())["status"] == "finished"
    assert not (run.path / "evaluation.json").exists()


def test_a_stopped_run_says_so(place: Path, corpus: Corpus) -> None:
    run = create_run(place / "run", small_config(corpus), corpus)
    summary = run_training(run, corpus, CPU, Watcher(), should_stop=lambda: True)
    assert (summary["status"], summary["step"]) == ("stopped", 1)
    assert read_json(run.path / "summary.json") == summary
    assert not (run.path / "evaluation.json").exists()


def test_a_finished_run_can_be_resumed_for_its_figures(place: Path, corpus: Corpus) -> None:
    run = create_run(place / "run", small_config(corpus), corpus)
    first = run_training(run, corpus, CPU, Watcher())
    (run.path / "evaluation.json").unlink()
    again = run_training(run, corpus, CPU, Watcher(), resume=True)
    assert again["status"] == "finished"
    assert (again["step"], again["train_seconds"]) == (first["step"], first["train_seconds"])
    assert (run.path / "evaluation.json").exists()


class TestFullDisk:
    @pytest.mark.parametrize(
        "error",
        [
            OSError(errno.ENOSPC, "No space left on device"),
            # What safetensors raises there, word for word.
            SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        ],
        ids=["system", "safetensors"],
    )
    def test_a_checkpoint_that_does_not_fit(
        self, place: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        run = create_run(place / "run", small_config(corpus, training={"evaluations_per_epoch": 5}), corpus)
        run_training(run, corpus, CPU, Watcher(), should_stop=self.after(run, 20))
        whole = {path.name: path.read_bytes() for path in run.path.glob("*.safetensors")}

        def full(tensors: Any, path: Path, metadata: Any) -> None:
            path.write_bytes(b"half")
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(checkpoint, "save_file", full)
            with pytest.raises(UserError, match=r"^The disk is full: '.*safetensors' could not be written"):
                run_training(run, corpus, CPU, Watcher(), resume=True)
        assert {path.name: path.read_bytes() for path in run.path.glob("*.safetensors")} == whole
        assert list(run.path.glob(".*")) == []
        # With space again, the same command goes on.
        assert run_training(run, corpus, CPU, Watcher(), resume=True)["status"] == "finished"

    @staticmethod
    def after(run: RunDirectory, step: int) -> Any:
        return lambda: (run.path / f"state-{step:012d}.safetensors").exists()

    def test_events_that_do_not_fit_are_given_up(
        self, place: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from torch.utils import tensorboard

        def full(*arguments: object, **keywords: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        for broken in ("__init__", "add_scalar", "close"):
            with monkeypatch.context() as patched:
                patched.setattr(tensorboard.SummaryWriter, broken, full)
                watcher = Watcher()
                run = create_run(place / broken, small_config(corpus), corpus)
                assert run_training(run, corpus, CPU, watcher)["status"] == "finished"
            (sentence,) = [sentence for sentence in watcher.sentences if "TensorBoard" in sentence]
            assert sentence.startswith("TensorBoard events cannot be written to ")
            assert "(No space left on device)" in sentence
            assert len(watcher.records) == 2


def test_a_run_that_ends_early_is_finished(corpus: Corpus, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worse = iter([7.0, 9.0])
    monkeypatch.setattr(
        "bnce.training.trainer.evaluate",
        lambda model, ids, **_: dataclasses.replace(evaluate(model, ids), ppl_f=next(worse)),
    )
    run = create_run(place / "run", small_config(corpus, training={"epochs": 9, "stop_after": 1}), corpus)
    watcher = Watcher()
    summary = run_training(run, corpus, CPU, watcher)
    assert any(": 1 evaluation in a row found no validation PPLf below 7 " in told for told in watcher.sentences)
    assert {key: summary[key] for key in ("status", "step", "best_step", "epochs", "stopped_early")} == {
        "status": "finished", "step": 100, "best_step": 50, "epochs": 2.0, "stopped_early": True
    }  # fmt: skip
    assert (run.path / "evaluation.json").is_file()


def test_the_best_model_is_tested_and_not_the_last(
    corpus: Corpus, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worse = iter([7.0, 9.0])
    monkeypatch.setattr(
        "bnce.training.trainer.evaluate",
        lambda model, ids, **_: dataclasses.replace(evaluate(model, ids), ppl_f=next(worse)),
    )
    run = create_run(place / "run", small_config(corpus), corpus)
    run_training(run, corpus, CPU, Watcher())
    tested = json.loads((run.path / "evaluation.json").read_text(encoding="utf-8"))
    assert tested["ppl_f"] == evaluate(load_model(run), corpus.split("test")).ppl_f


def test_while_it_runs_a_run_claims_no_speed(place: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, it would be a run of 0 words a second for ever."""
    seen = []
    monkeypatch.setattr(Trainer, "train", lambda self, _: seen.append(read_json(self.run.path / "summary.json")))
    run_training(create_run(place / "run", small_config(corpus), corpus), corpus, CPU, Watcher())
    (summary,) = seen
    assert summary["status"] == "running"
    assert {summary[key] for key in ("words_per_second", "train_seconds", "tokens", "epochs")} == {None}


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (NotFiniteError("The loss is no longer finite."), "diverged", "The loss is no longer finite"),
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            "failed",
            r"The GPU's memory is full: relu-lstm with bnce .*\(8\)",
        ),
        (KeyError("a bug"), "failed", "a bug"),
    ],
)
def test_what_broke_a_run_off_is_in_its_summary(
    place: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, error: Exception, status: str, told: str
) -> None:
    def fail(trainer: Trainer, _: object) -> bool:
        trainer.save()
        trainer.progress.tokens, trainer.clock.timed_tokens, trainer.clock.seconds = 1000, 1000, 1e-9
        raise error

    monkeypatch.setattr(Trainer, "train", fail)
    run = create_run(place / "run", small_config(corpus), corpus)
    kind = OutOfMemoryError if isinstance(error, torch.OutOfMemoryError) else type(error)
    with pytest.raises(kind, match=told):
        run_training(run, corpus, CPU, Watcher())
    summary = read_json(run.path / "summary.json")
    assert (summary["status"], summary["words_per_second"]) == (status, None)


@pytest.mark.parametrize("error", [OSError(errno.EFBIG, "File too large"), UserError("It does not fit.")])
def test_what_fails_at_its_start_leaves_its_place_free(
    place: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    for broken in ("bnce.training.trainer.build_model", "bnce.runs.directory.RunDirectory.write_json"):
        run = create_run(place / "run", small_config(corpus), corpus)
        with monkeypatch.context() as patched, hold_run(run.path):
            patched.setattr(broken, fail)
            with pytest.raises(type(error)):
                run_training(run, corpus, CPU, Watcher())
        assert list(place.iterdir()) == []


def test_a_refused_resume_changes_nothing(place: Path, tmp_path: Path, corpus: Corpus) -> None:
    run = create_run(place / "run", small_config(corpus), corpus)
    run_training(run, corpus, CPU, Watcher())
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    other = small_corpus(tmp_path / "other", num_train=1999)
    with pytest.raises(UserError, match="has another training text"):
        run_training(run, other, CPU, Watcher(), resume=True)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("is_hidden", [False, True], ids=["plain", "behind another error"])
def test_memory_that_is_full_in_the_test_is_explained_too(
    place: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, is_hidden: bool
) -> None:
    def full(*_: object, **__: object) -> Evaluation:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            if is_hidden:
                raise RuntimeError("the capture was broken off")

    monkeypatch.setattr(training_run, "evaluate", full)
    run = create_run(place / "run", small_config(corpus), corpus)
    with pytest.raises(OutOfMemoryError, match="The GPU's memory is full"):
        run_training(run, corpus, CPU, Watcher())
    assert read_json(run.path / "summary.json")["status"] == "failed"


def test_figures_of_a_model_that_is_trained_anew_are_dropped(place: Path, corpus: Corpus) -> None:
    """A run that was killed between its test and its end, and has no state, begins again."""
    run = create_run(place / "run", small_config(corpus), corpus)
    run.write_json("evaluation.json", {"split": "test", "ppl_f": 1.0})
    run_training(run, corpus, CPU, Watcher(), resume=True, should_stop=lambda: True)
    assert not (run.path / "evaluation.json").exists()


def test_a_run_of_two_devices_names_both(place: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A speed of the one and the other is not compared with that of either."""
    run = create_run(place / "run", small_config(corpus), corpus)
    run_training(run, corpus, CPU, Watcher(), should_stop=lambda: True)
    monkeypatch.setattr("bnce.training.trainer.describe_device", lambda _: "A faster one")
    watcher = Watcher()
    summary = run_training(run, corpus, CPU, watcher, resume=True)
    assert summary["device"] == f"{describe_device(CPU)}, then A faster one"
    assert any(
        "continues on A faster one: its speed will be an average of both" in sentence for sentence in watcher.sentences
    )


def test_a_resumed_run_keeps_the_command_that_made_it(place: Path, corpus: Corpus) -> None:
    run = create_run(place / "run", small_config(corpus), corpus)
    run_training(run, corpus, CPU, Watcher(), should_stop=lambda: True, command="bnce train small")
    summary = run_training(run, corpus, CPU, Watcher(), resume=True, command="bnce train --resume")
    assert summary["command"] == "bnce train small"
