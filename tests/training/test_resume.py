"""A run that is interrupted, by whatever, ends with the bits of one that is not."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from command import Command, ctrl_c_after_step, run_command, settings
from kill_itself import killed_in
from run_files import metrics_of, settings_of, states_of, summary_of
from safetensors import safe_open
from safetensors.torch import load_file
from small_corpus import Watcher, random_ids, small_corpus, write_corpus
from small_training import resume_small, train_small

from bnce import Corpus, UserError

MakeRun = Callable[..., Path]
OF_THE_MACHINE = ("seconds", "words_per_second", "peak_memory_bytes")
STATE_OF_THE_MACHINE = ("seconds", "seconds_at_evaluation")

# Dropout and drawn noise words: without the seed of each step, nothing would be the same again.
RANDOM = {"model": {"name": "lstm", "dropout": 0.2}, "loss": {"name": "snce", "num_noise": 4}}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return small_corpus(tmp_path_factory.mktemp("resume") / "corpus", num_train=1003)  # an epoch has 25 steps


@pytest.fixture(scope="module")
def unbroken_of(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """Give a maker of runs in one go; nobody may change them, and the same settings give the same one."""
    made: dict[str, Path] = {}

    def make(corpus: Corpus, sections: dict[str, Any]) -> Path:
        key = repr((corpus.directory, sections))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("unbroken") / "run"
            train_small(made[key], corpus, **sections)
        return made[key]

    return make


def metrics(run: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key not in OF_THE_MACHINE} for record in metrics_of(run)]


def read_metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="np") as file:
        return dict(file.metadata())


def newest_state(run: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    newest = states_of(run)[-1]
    record = json.loads(read_metadata(newest)["record"])
    return load_file(newest), {key: value for key, value in record.items() if key not in STATE_OF_THE_MACHINE}


def bits(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()}


def assert_the_same_to_the_bit(run: Path, unbroken: Path) -> None:
    """Compare the model, the whole last state and every figure that is not the machine's."""
    our_state, their_state = newest_state(run), newest_state(unbroken)
    kinds = {name.partition(".")[0] for name in our_state[0]}
    assert "model" in kinds
    assert "random" not in kinds, "every step is seeded"
    optimiser = settings_of(run)["optimiser"]
    assert ("optimiser" in kinds) == (optimiser["name"] != "sgd")
    assert bits(our_state[0]) == bits(their_state[0])
    assert our_state[1] == their_state[1]
    assert metrics(run) == metrics(unbroken)
    assert metrics(run)
    for name in ("model.safetensors", "evaluation.json", "config.toml", "run.json", "vocab.txt"):
        assert (run / name).read_bytes() == (unbroken / name).read_bytes()


def train_in_pieces(
    run: Path,
    corpus: Corpus,
    steps: list[int],
    sections: dict[str, Any],
    between: Callable[[Path], None] = lambda run: None,
) -> Watcher:
    """Stop after each of these steps, forget everything, and go on from the disk to the end."""
    watcher, before = Watcher(), 0
    for step in steps:
        if before == 0:
            train_small(run, corpus, observer=watcher, stop_after=step, **sections)
        else:
            resume_small(run, observer=watcher, stop_after=step - before)
        assert (summary_of(run)["status"], summary_of(run)["step"]) == ("stopped", step)
        assert states_of(run)[-1].name == f"state-{step:012d}.safetensors"
        assert not (run / "evaluation.json").exists()
        between(run)
        before = step
    torch.manual_seed(12345)
    assert resume_small(run, observer=watcher)["status"] == "finished"
    return watcher


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param({**RANDOM}, id="lstm"),
        pytest.param({**RANDOM, "model": {"name": "rnn", "dropout": 0.2}}, id="rnn"),
        pytest.param({**RANDOM, "training": {"precision": "bf16"}}, id="lstm-bf16"),
        pytest.param({**RANDOM, "training": {"epochs": 1.7}}, id="lstm-1.7-epochs"),
        pytest.param({**RANDOM, "model": {"name": "ffnn", "dropout": 0.2}}, id="ffnn"),
        pytest.param(
            {
                **RANDOM,
                "model": {"name": "relu-rnn", "dropout": 0.2},
                "optimiser": {"name": "sgd", "learning_rate": 2.0, "schedule": "halve", "patience": 1},
            },
            id="halving sgd",
        ),
        pytest.param({**RANDOM, "model": {"name": "relu-lstm", "num_layers": 2, "dropout": 0.2}}, id="two layers"),
        pytest.param({**RANDOM, "training": {"reset_rate": 0.5}}, id="resets"),
        pytest.param({**RANDOM, "model": {"name": "transformer", "num_layers": 2, "dropout": 0.2}}, id="transformer"),
        pytest.param({"loss": {"learn_log_z": True, "num_noise": 3}}, id="learned log Z"),
        pytest.param({**RANDOM, "optimiser": {"name": "rowwise-adam", "eps": 1e-5}}, id="row-wise Adam"),
    ],
)
def test_stopped_and_resumed(tmp_path: Path, corpus: Corpus, unbroken_of: MakeRun, sections: dict[str, Any]) -> None:
    sections = {**sections, "training": {"evaluations_per_epoch": 3, **sections.get("training", {})}}
    # Before the first evaluation, between two, at the end of an epoch and right after it.
    train_in_pieces(tmp_path / "broken", corpus, [3, 12, 25, 26], sections)
    assert_the_same_to_the_bit(tmp_path / "broken", unbroken_of(corpus, sections))


def test_a_torn_state_falls_back_to_the_one_before(tmp_path: Path, corpus: Corpus, unbroken_of: MakeRun) -> None:
    sections = {**RANDOM, "training": {"evaluations_per_epoch": 3}}

    def tear(run: Path) -> None:
        newest = states_of(run)[-1]
        newest.write_bytes(newest.read_bytes()[:-100])

    # State 9 was saved before an evaluation, which is not made again.
    watcher = train_in_pieces(tmp_path / "broken", corpus, [17], sections, tear)
    (sentence,) = [sentence for sentence in watcher.sentences if "previous checkpoint" in sentence]
    assert "state-000000000017.safetensors' is incomplete or not a safetensors file" in sentence
    assert sentence.endswith("The previous checkpoint is used.")
    assert [record["step"] for record in watcher.records] == [9, 17, 25, 34, 42, 50]
    assert_the_same_to_the_bit(tmp_path / "broken", unbroken_of(corpus, sections))


@pytest.fixture
def worsening(tmp_path: Path) -> Corpus:
    """Give a corpus whose words follow each other in the training text alone: evaluations find worse and worse."""
    shuffled = np.random.default_rng(1).permutation(random_ids(600))
    return write_corpus(tmp_path / "worsening", {"train": random_ids(1003), "valid": shuffled})


def test_the_best_model_stays_the_best(tmp_path: Path, worsening: Corpus) -> None:
    run = tmp_path / "run"
    train_in_pieces(run, worsening, [20], {"training": {"evaluations_per_epoch": 3}})
    perplexities = {record["step"]: record["ppl_f"] for record in metrics_of(run)}
    assert list(perplexities) == [9, 17, 25, 34, 42, 50]
    best = min(perplexities, key=perplexities.__getitem__)
    assert best < 20
    assert read_metadata(run / "model.safetensors")["step"] == str(best)


class Interrupter(Watcher):
    """Presses Ctrl-C in the middle of an evaluation on this split."""

    def __init__(self, split: str) -> None:
        super().__init__()
        self.split = split

    def evaluating(self, split: str, num_done: int, num_tokens: int) -> None:
        if split == self.split and 0 < num_done < num_tokens:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture(scope="module")
def long_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Give a corpus whose valid and test take more than one block to evaluate."""
    sizes = {"train": 1003, "valid": 1200, "test": 1201}
    splits = {name: random_ids(size, seed=size) for name, size in sizes.items()}
    return write_corpus(tmp_path_factory.mktemp("long") / "corpus", splits)


@pytest.mark.parametrize("checkpoint_seconds", [600.0, math.inf], ids=["saved", "saved only when stopped"])
@pytest.mark.parametrize("split", ["valid", "test"])
def test_stopped_while_it_evaluates(
    tmp_path: Path, long_corpus: Corpus, unbroken_of: MakeRun, split: str, checkpoint_seconds: float
) -> None:
    """It stops at once, and what is resumed evaluates what is due, once."""
    settings = {"evaluations_per_epoch": 3, "checkpoint_seconds": checkpoint_seconds}
    sections, broken = {**RANDOM, "training": settings}, tmp_path / "broken"
    unbroken = unbroken_of(long_corpus, sections)
    watcher = Interrupter(split)
    with pytest.raises(KeyboardInterrupt):
        train_small(broken, long_corpus, observer=watcher, **sections)
    due = [9, 17, 25, 34, 42, 50] if split == "valid" else []
    assert [record["step"] for record in watcher.records] == ([] if due else [9, 17, 25, 34, 42, 50])
    assert newest_state(broken)[1]["step"] == (9 if due else 50)
    assert summary_of(broken)["status"] == "stopped"
    again = Watcher()
    assert resume_small(broken, observer=again)["status"] == "finished"
    assert [record["step"] for record in again.records] == due
    assert metrics(broken) == metrics(unbroken)
    if math.isfinite(checkpoint_seconds):
        assert_the_same_to_the_bit(broken, unbroken)


def test_an_evaluation_counts_that_is_no_longer_due(tmp_path: Path, worsening: Corpus) -> None:
    """A run that is killed after an evaluation, and resumed with fewer of them, knows its best model."""
    run, steps = tmp_path / "run", itertools.count(1)

    def train() -> None:
        train_small(run, worsening, training={"evaluations_per_epoch": 5, "epochs": 1})

    assert killed_in(train, torch.Tensor, "backward", lambda *_: next(steps) == 6)
    (first,) = metrics_of(run)
    record = newest_state(run)[1]
    assert (first["step"], record["step"], record["best_step"]) == (5, 5, 0)
    summary = resume_small(run, training={"evaluations_per_epoch": 1})
    assert [record["step"] for record in metrics_of(run)] == [5, 25]
    assert summary["best_step"] == 5
    assert read_metadata(run / "model.safetensors")["step"] == "5"


@pytest.mark.parametrize("at_step", [1, 15, 25])
def test_stopped_in_the_middle_of_a_step(tmp_path: Path, corpus: Corpus, unbroken_of: MakeRun, at_step: int) -> None:
    """The step is made to its end, and that is where the run goes on."""
    broken = tmp_path / "broken"
    train_small(broken, corpus, stop_after=at_step, **RANDOM)
    assert newest_state(broken)[1]["step"] == at_step
    assert summary_of(broken)["status"] == "stopped"
    resume_small(broken)
    assert_the_same_to_the_bit(broken, unbroken_of(corpus, RANDOM))


def test_the_state_is_saved_before_an_evaluation(tmp_path: Path, corpus: Corpus) -> None:
    class Looker(Watcher):
        def evaluating(self, split: str, num_done: int, num_tokens: int) -> None:
            found.extend(path.name for path in states_of(tmp_path / "run"))
            raise ZeroDivisionError

    found: list[str] = []
    with pytest.raises(ZeroDivisionError):
        train_small(tmp_path / "run", corpus, observer=Looker())
    assert found == ["state-000000000025.safetensors"]


def test_leftovers_of_a_killed_save_are_cleared(tmp_path: Path, corpus: Corpus) -> None:
    run = tmp_path / "run"

    def leave(run: Path) -> None:
        (run / ".state-000000000004.safetensors.123.partial").mkdir()
        (run / ".state-000000000004.safetensors.123.partial" / "state-000000000004.safetensors").write_bytes(b"half")

    train_in_pieces(run, corpus, [3], {}, leave)
    assert list(run.glob(".*")) == []


def test_no_state_is_whole(tmp_path: Path, corpus: Corpus) -> None:
    train_small(tmp_path / "run", corpus, stop_after=1)
    for path in states_of(tmp_path / "run"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match=r"has no checkpoint to resume from.*is incomplete"):
        resume_small(tmp_path / "run")


def test_a_run_with_figures_and_no_state_is_left_alone(tmp_path: Path, corpus: Corpus) -> None:
    """To begin it anew would take away its figures and its best model."""
    run, settings = tmp_path / "run", {"evaluations_per_epoch": 3, "checkpoint_seconds": math.inf}
    train_small(run, corpus, training=settings, stop_after=10)
    for path in states_of(run):  # as if it had been killed
        path.unlink()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"has no state .* training.checkpoint_seconds=inf: continue from"):
        resume_small(run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_what_may_change_is_changed_and_written_down(tmp_path: Path, corpus: Corpus) -> None:
    run = tmp_path / "run"
    train_small(run, corpus, stop_after=1)
    watcher = Watcher()
    more = {"optimiser": {"learning_rate": 0.025}, "training": {"epochs": 3, "evaluations_per_epoch": 2}}
    resume_small(run, observer=watcher, stop_after=19, **more)
    changes = [
        {"step": 1, "setting": "optimiser.learning_rate", "from": 0.1, "to": 0.025},
        {"step": 1, "setting": "training.epochs", "from": 2, "to": 3},
        {"step": 1, "setting": "training.evaluations_per_epoch", "from": 1, "to": 2},
    ]
    assert summary_of(run)["changes"] == changes
    assert "From step 1 on, optimiser.learning_rate is 0.025 instead of 0.1." in watcher.sentences
    # From now on these are the run's settings.
    config = settings_of(run)
    for table, changed in more.items():
        assert config[table].items() >= changed.items()
    summary = resume_small(run)
    assert (summary["status"], summary["step"], summary["changes"]) == ("finished", 75, changes)
    assert [record["step"] for record in metrics_of(run)] == [13, 25, 38, 50, 63, 75]
    assert metrics_of(run)[0]["lr"] == pytest.approx(0.025 * (1 - 12 / 75))
    # A run that is finished goes on for more epochs.
    summary = resume_small(run, training={"epochs": 4})
    assert summary["step"] == 100
    assert summary["changes"][3:] == [{"step": 75, "setting": "training.epochs", "from": 3, "to": 4}]


def test_what_may_not_change_is_named(tmp_path: Path, corpus: Corpus) -> None:
    run = tmp_path / "run"
    train_small(run, corpus, stop_after=1)
    before = (run / "config.toml").read_bytes()
    with pytest.raises(UserError, match=r"settings \(loss.log_z 9.0, not 7.0, training.batch_size 8, not 4\), which"):
        resume_small(run, training={"batch_size": 4, "epochs": 3}, loss={"log_z": 7.0})
    with pytest.raises(UserError, match=r"training.max_valid_tokens 0, not 100"):
        resume_small(run, training={"max_valid_tokens": 100})
    assert (run / "config.toml").read_bytes() == before


@pytest.mark.parametrize("line", [b"null", b'{"step": 9, "ppl_f": "\xff"}', b"{}", b'"step"'])
def test_damaged_metrics_do_not_stop_a_resume(tmp_path: Path, corpus: Corpus, line: bytes) -> None:
    run = tmp_path / "run"
    train_small(run, corpus, training={"evaluations_per_epoch": 3}, stop_after=20)
    _, second = (run / "metrics.jsonl").read_bytes().splitlines()
    (run / "metrics.jsonl").write_bytes(b"\n".join([line, second, b""]))
    watcher = Watcher()
    assert resume_small(run, observer=watcher)["status"] == "finished"
    assert [record["step"] for record in metrics_of(run)] == [17, 25, 34, 42, 50]
    assert f"Damaged lines in '{run / 'metrics.jsonl'}' were skipped: 1." in watcher.sentences


def test_a_run_stopped_before_its_first_state_starts(tmp_path: Path, corpus: Corpus) -> None:
    train_small(tmp_path / "whole", corpus)
    train_small(tmp_path / "killed", corpus, stop_after=1)
    for path in states_of(tmp_path / "killed"):
        path.unlink()
    resume_small(tmp_path / "killed")
    found, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("killed", "whole"))
    assert bits(found) == bits(expected)


def test_the_state_of_another_run_is_refused(tmp_path: Path, corpus: Corpus) -> None:
    one, other = tmp_path / "run-1", tmp_path / "run-2"
    train_small(one, corpus, training={"seed": 1}, stop_after=1)
    train_small(other, corpus, training={"seed": 2}, stop_after=1)
    for path in states_of(other):
        path.unlink()
    (state,) = states_of(one)
    state.rename(other / state.name)
    with pytest.raises(UserError, match="belongs to another run"):
        resume_small(other)


# From here on with processes, as a person has them.

CHANGES = ("model.dropout=0.2", "loss.num_noise=4", "training.epochs=4", "training.evaluations_per_epoch=1")
NUM_STEPS = 4 * 25


def command(corpus: Corpus, out: Path) -> list[str]:
    options = ["--corpus", str(corpus.directory), "--out", str(out), "--device", "cpu"]
    kinds = ["--model", "relu-lstm", "--loss", "snce"]
    return ["train", "wiki", *kinds, *options, *settings(*CHANGES, "training.checkpoint_seconds=0.05")]


@pytest.fixture(scope="module")
def unbroken(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the same run in this process in one go."""
    out = tmp_path_factory.mktemp("unbroken") / "run"
    run_command(*command(corpus, out))
    return out


def test_killed_and_resumed(tmp_path: Path, corpus: Corpus, unbroken: Path) -> None:
    out = tmp_path / "run"
    words = command(corpus, out)

    def is_late(*_: Any) -> bool:
        """Past the evaluation at step 25, so that there are metrics to keep, and the one at step 50, with its state."""
        return any(path.name >= "state-000000000050" for path in states_of(out))

    assert killed_in(lambda: run_command(*words), safetensors.torch, "serialize_file", is_late)
    _, record = newest_state(out)
    assert 25 < record["step"] < NUM_STEPS
    assert summary_of(out)["status"] == "running"
    run_command(*words, "--resume")
    assert_the_same_to_the_bit(out, unbroken)


def test_ctrl_c_saves_and_says_how_to_go_on(bnce: Command, tmp_path: Path, corpus: Corpus, unbroken: Path) -> None:
    out = tmp_path / "a run"
    with ctrl_c_after_step(60):
        ended = bnce(*command(corpus, out))
    assert (ended.status, ended.stdout) == (130, "")
    assert "Traceback" not in ended.stderr
    told = re.search(
        r"^Stopped and saved at step (\d+)\. Continue with  bnce (train .* --resume)$", ended.stderr, re.MULTILINE
    )
    assert told is not None
    assert newest_state(out)[1]["step"] == int(told[1]) == 60
    assert summary_of(out)["status"] == "stopped"
    # What it says to type works as it stands.
    run_command(*shlex.split(told[2]))
    assert_the_same_to_the_bit(out, unbroken)
