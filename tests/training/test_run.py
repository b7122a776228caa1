"""A whole run: the files it leaves, and what is refused before anything is written."""

from __future__ import annotations

import errno
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import Command, ctrl_c_after_step, happening_in_step
from run_files import metrics_of, summary_of
from safetensors import SafetensorError
from safetensors.numpy import load_file
from small_corpus import VOCAB_SIZE, Watcher, random_ids, small_corpus, write_corpus
from small_training import RECIPE, resume_small, train_small

from bnce import Corpus, UserError, evaluate


@pytest.mark.parametrize("loss", ["softmax", "snce", "bnce", "chunk-bnce"])
def test_training_on_a_part_is_training_on_a_corpus_that_is_that_part(place: Path, tmp_path: Path, loss: str) -> None:
    whole = {"train": random_ids(4000), "valid": random_ids(301, seed=2), "test": random_ids(257, seed=3)}
    whole["train"][2003:] = VOCAB_SIZE - 1  # what follows the part is of other words
    part = {**whole, "train": whole["train"][:2003]}
    models, figures = [], []
    for name, splits, limit in (("cut", whole, 2003), ("part", part, 0)):
        corpus = write_corpus(tmp_path / name, splits)
        settings = {"batch_size": 8, "num_steps": 5, "epochs": 1, "max_train_tokens": limit}
        drawn = {"name": loss, **({"num_noise": 5} if loss == "snce" else {})}
        train_small(place / name, corpus, loss=drawn, training=settings)
        models.append(load_file(place / name / "model.safetensors"))
        figures.append((place / name / "evaluation.json").read_text())
    assert figures[0] == figures[1]
    assert all(np.array_equal(tensor, models[1][name]) for name, tensor in models[0].items())


def test_a_run_counts_exactly_the_targets_it_trains_on(place: Path, corpus: Corpus) -> None:
    # 1,003 tokens in 8 streams: the last three make no full row and are never a target.
    train_small(place / "run", corpus, training={"max_train_tokens": 1003, "epochs": 1})
    counts = np.load(place / "run" / "counts.npy")
    assert counts.tolist() == np.bincount(corpus.split("train")[:1000], minlength=VOCAB_SIZE).tolist()


def test_a_run_leaves_what_its_directory_promises(place: Path, corpus: Corpus) -> None:
    watcher, run = Watcher(), place / "run"
    summary = train_small(run, corpus, observer=watcher)
    assert {path.name for path in run.iterdir()} == {
        "config.toml", "vocab.txt", "counts.npy", "run.json", "summary.json", "metrics.jsonl",
        "evaluation.json", "model.safetensors", "state-000000000050.safetensors", "state-000000000100.safetensors",
        "spelling.safetensors", "tensorboard",
    }  # fmt: skip
    assert summary_of(run).items() <= summary.items()
    assert summary["status"] == "finished"
    assert (summary["step"], summary["tokens"], summary["epochs"]) == (100, 4000, 2.0)
    tensors = load_file(run / "model.safetensors")
    assert summary["num_parameters"] == sum(tensor.size for name, tensor in tensors.items() if name != "output.log_z")
    assert summary["num_table_parameters"] == 30 * (6 + 7 + 1)
    assert (summary["vocab_size"], summary["vocabulary_digest"]) == (30, corpus.vocabulary.digest)
    assert summary["seed"] == 1
    assert summary["words_per_second"] == pytest.approx(4000 / summary["train_seconds"])
    found = json.loads((run / "evaluation.json").read_text())
    result = evaluate(run, device="cpu", by_sentence=False).to_dict()
    assert found == {"split": "test", **result}
    assert [record["step"] for record in watcher.records] == [50, 100]


def test_a_corpus_may_have_no_test_split(tmp_path: Path, place: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", {"train": random_ids(400), "valid": random_ids(50)})
    assert train_small(place / "run", corpus)["status"] == "finished"
    assert not (place / "run" / "evaluation.json").exists()


def test_a_finished_run_can_be_resumed_for_its_figures(place: Path, corpus: Corpus) -> None:
    run = place / "run"
    first = train_small(run, corpus)
    (run / "evaluation.json").unlink()
    again = resume_small(run)
    assert again["status"] == "finished"
    assert (again["step"], again["train_seconds"]) == (first["step"], first["train_seconds"])
    assert (run / "evaluation.json").exists()


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
        run = place / "run"
        train_small(run, corpus, training={"evaluations_per_epoch": 5}, stop_after=20)
        whole = {path.name: path.read_bytes() for path in run.glob("*.safetensors")}

        def full(tensors: Any, path: Path, metadata: Any) -> None:
            path.write_bytes(b"half")
            raise error

        with monkeypatch.context() as patched:
            patched.setattr("bnce.runs.checkpoint.save_file", full)
            with pytest.raises(UserError, match=r"^The disk is full: '.*safetensors' could not be written"):
                resume_small(run)
        assert {path.name: path.read_bytes() for path in run.glob("*.safetensors")} == whole
        assert list(run.glob(".*")) == []
        # With space again, the same command goes on.
        assert resume_small(run)["status"] == "finished"

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
                assert train_small(place / broken, corpus, observer=watcher)["status"] == "finished"
            (sentence,) = [sentence for sentence in watcher.sentences if "TensorBoard" in sentence]
            assert sentence.startswith("TensorBoard events cannot be written to ")
            assert "(No space left on device)" in sentence
            assert len(watcher.records) == 2


STANDSTILL = {"learning_rate": 1e-30, "body_learning_rate": 1e-30}


def test_a_run_that_ends_early_is_finished(corpus: Corpus, place: Path) -> None:
    watcher, run = Watcher(), place / "run"
    summary = train_small(run, corpus, observer=watcher, optimiser=STANDSTILL, training={"epochs": 9, "stop_after": 1})
    lowest = metrics_of(run)[0]["ppl_f"]
    told = f": 1 evaluation in a row found no validation PPLf below {lowest:.5g} "
    assert any(told in sentence for sentence in watcher.sentences)
    assert {key: summary[key] for key in ("status", "step", "best_step", "epochs", "stopped_early")} == {
        "status": "finished", "step": 100, "best_step": 50, "epochs": 2.0, "stopped_early": True
    }  # fmt: skip
    assert (run / "evaluation.json").is_file()


def test_the_best_model_is_tested_and_not_the_last(tmp_path: Path, place: Path) -> None:
    """Words follow each other in the training text alone: the longer it learns how, the worse."""
    shuffled = {name: np.random.default_rng(1).permutation(random_ids(600)) for name in ("valid", "test")}
    corpus = write_corpus(tmp_path / "corpus", {"train": random_ids(2003), **shuffled})
    summary = train_small(place / "run", corpus)
    first, last = metrics_of(place / "run")
    assert first["ppl_f"] < last["ppl_f"]
    assert summary["best_step"] == 50
    assert summary["test"]["ppl_f"] == first["ppl_f"], "the same text"


def test_while_it_runs_a_run_claims_no_speed(place: Path, corpus: Corpus) -> None:
    """Killed, it would be a run of 0 words a second for ever."""

    class Reader(Watcher):
        def advanced(self, **_: Any) -> None:
            seen.append(summary_of(place / "run"))

    seen: list[Any] = []
    train_small(place / "run", corpus, observer=Reader(), training={"epochs": 0.2})
    assert len(seen) == 10
    for summary in seen:
        assert summary["status"] == "running"
        assert {summary[key] for key in ("words_per_second", "train_seconds", "tokens", "epochs")} == {None}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), r"The GPU's memory is full: relu-lstm with bnce .*\(8\)"),
        (KeyError("a bug"), "a bug"),
    ],
)
def test_what_broke_a_run_off_is_in_its_summary(place: Path, corpus: Corpus, error: Exception, told: str) -> None:
    def fail() -> None:
        raise error

    kind = UserError if isinstance(error, torch.OutOfMemoryError) else type(error)
    with pytest.raises(kind, match=told), happening_in_step(60, fail):
        train_small(place / "run", corpus)
    summary = summary_of(place / "run")
    assert (summary["status"], summary["words_per_second"]) == ("failed", None)


def test_that_it_diverged_is_in_its_summary(place: Path, corpus: Corpus) -> None:
    with pytest.raises(UserError, match="is no longer finite"):
        train_small(place / "run", corpus, optimiser={"learning_rate": 1e38, "clip_norm": 1e6})
    summary = summary_of(place / "run")
    assert (summary["status"], summary["words_per_second"]) == ("diverged", None)


@pytest.mark.parametrize("error", [OSError(errno.EFBIG, "File too large"), UserError("It does not fit.")])
def test_what_fails_at_its_start_leaves_its_place_free(
    place: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    for broken in ("bnce.training.trainer.build_model", "bnce.training.run.summarise"):
        with monkeypatch.context() as patched:
            patched.setattr(broken, fail)
            with pytest.raises(type(error)):
                train_small(place / "run", corpus)
        assert list(place.iterdir()) == []


def test_a_refused_resume_changes_nothing(place: Path, tmp_path: Path, corpus: Corpus) -> None:
    run = place / "run"
    train_small(run, corpus)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    other = small_corpus(tmp_path / "other", num_train=1999)
    with pytest.raises(UserError, match="has another training text"):
        resume_small(run, other)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("is_hidden", [False, True], ids=["plain", "behind another error"])
def test_memory_that_is_full_in_the_test_is_explained_too(place: Path, corpus: Corpus, is_hidden: bool) -> None:
    class Full(Watcher):
        def evaluating(self, split: str, num_done: int, num_tokens: int) -> None:
            if split != "test":
                return
            try:
                raise torch.OutOfMemoryError("CUDA out of memory")
            finally:
                if is_hidden:
                    raise RuntimeError("the capture was broken off")

    with pytest.raises(UserError, match="The GPU's memory is full"):
        train_small(place / "run", corpus, observer=Full())
    assert summary_of(place / "run")["status"] == "failed"


def test_figures_of_a_model_that_is_trained_anew_are_dropped(place: Path, corpus: Corpus) -> None:
    """A run that was killed between its test and its end, and has no state, begins again."""
    run = place / "run"
    train_small(run, corpus, stop_after=1)
    for state in run.glob("state-*"):
        state.unlink()
    (run / "evaluation.json").write_text('{"split": "test", "ppl_f": 1.0}', encoding="utf-8")
    resume_small(run, stop_after=1)
    assert not (run / "evaluation.json").exists()


def test_a_run_of_two_devices_names_both(place: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A speed of the one and the other is not compared with that of either."""
    train_small(place / "run", corpus, stop_after=1)
    before = summary_of(place / "run")["device"]
    monkeypatch.setattr("bnce.training.trainer.describe_device", lambda _: "A faster one")
    assert resume_small(place / "run")["device"] == f"{before}, then A faster one"


def test_a_resumed_run_keeps_the_command_that_made_it(bnce: Command, place: Path, corpus: Corpus) -> None:
    words = ["train", RECIPE, "--corpus", corpus.directory, "--out", place / "run", "--device", "cpu"]
    with ctrl_c_after_step(1):
        assert bnce(*words).status == 130
    bnce("train", "--resume", "--out", place / "run")
    summary = summary_of(place / "run")
    assert (summary["status"], summary["command"]) == ("finished", shlex.join(["bnce", *map(str, words)]))
