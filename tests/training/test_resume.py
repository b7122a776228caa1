"""A run that is interrupted, by whatever, ends with the bits of one that is not."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Command
from kill_itself import killed_in
from small_corpus import Watcher, random_ids, small_config, small_corpus, write_corpus

from bnce import Corpus, UserError
from bnce.cli import app
from bnce.config import RunConfig, change_settings, to_toml
from bnce.language_model import LanguageModel
from bnce.machine.stopping import Stopped, raise_on_signals
from bnce.runs.checkpoint import MODEL_FILE, MODEL_FORMAT, STATE_FORMAT, read_tensors, state_files, write_tensors
from bnce.runs.directory import RunDirectory, read_summary
from bnce.runs.metrics import append_metrics, read_metrics
from bnce.runs.model_file import load_model
from bnce.runs.resuming import settings_of_state
from bnce.training import checkpoints, trainer
from bnce.training.plan import create_run
from bnce.training.run import run_training

MakeRun = Callable[[RunConfig, Corpus], RunDirectory]
CPU = torch.device("cpu")
OF_THE_MACHINE = ("seconds", "words_per_second", "peak_memory_bytes")
STATE_OF_THE_MACHINE = ("seconds", "seconds_at_evaluation")

# Dropout and drawn noise words: without the random state, nothing would be the same again.
RANDOM = {"model": {"name": "lstm", "dropout": 0.2}, "loss": {"name": "snce", "num_noise": 4}}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return small_corpus(tmp_path_factory.mktemp("resume") / "corpus", num_train=1003)  # an epoch has 25 steps


@pytest.fixture(scope="module")
def unbroken_of(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """Give a maker of runs in one go; nobody may change them, and the same settings give the same one."""
    made: dict[str, RunDirectory] = {}

    def make(config: RunConfig, corpus: Corpus) -> RunDirectory:
        key = to_toml(config)
        if key not in made:
            made[key] = create_run(tmp_path_factory.mktemp("unbroken") / "run", config, corpus)
            run_training(made[key], corpus, CPU, Watcher())
        return made[key]

    return make


def metrics(run: RunDirectory) -> list[dict[str, Any]]:
    records = read_metrics(run.path).records
    return [{key: value for key, value in record.items() if key not in OF_THE_MACHINE} for record in records]


def newest_state(run: RunDirectory) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    tensors, metadata = read_tensors(state_files(run.path)[-1], STATE_FORMAT)
    record = json.loads(metadata["record"])
    return tensors, {key: value for key, value in record.items() if key not in STATE_OF_THE_MACHINE}


def bits(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def assert_the_same_to_the_bit(run: RunDirectory, unbroken: RunDirectory) -> None:
    """Compare the model, the whole last state and every figure that is not the machine's."""
    ours, theirs = (read_tensors(each.path / MODEL_FILE, MODEL_FORMAT) for each in (run, unbroken))
    assert bits(ours[0]) == bits(theirs[0])
    assert ours[1] == theirs[1]
    our_state, their_state = newest_state(run), newest_state(unbroken)
    kinds = {name.partition(".")[0] for name in our_state[0]}
    assert {"model", "random"} <= kinds
    assert ("optimiser" in kinds) == (run.config.optimiser.name != "sgd")
    assert bits(our_state[0]) == bits(their_state[0])
    assert our_state[1] == their_state[1]
    assert metrics(run) == metrics(unbroken)
    assert metrics(run)
    for name in ("evaluation.json", "config.toml", "vocab.txt"):
        assert (run.path / name).read_bytes() == (unbroken.path / name).read_bytes()


def train_in_pieces(
    run: RunDirectory, corpus: Corpus, steps: list[int], between: Callable[[RunDirectory], None] = lambda run: None
) -> Watcher:
    """Stop after each of these steps, forget everything, and go on from the disk to the end."""
    watcher = Watcher()
    for number, step in enumerate(steps):
        due = run.path / f"state-{step:012d}.safetensors"
        # Counted by the calls, one a step, for the trainer itself is out of reach.
        calls = iter(range(1 if number == 0 else steps[number - 1] + 1, 10_000))
        summary = run_training(
            run, corpus, CPU, watcher, resume=number > 0, should_stop=lambda calls=calls, step=step: next(calls) == step
        )
        assert summary["status"] == "stopped"
        assert due.exists()
        between(run)
    torch.manual_seed(12345)
    summary = run_training(RunDirectory.open(run.path), corpus, CPU, watcher, resume=True)
    assert summary["status"] == "finished"
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
        pytest.param({**RANDOM, "optimiser": {"name": "rowwise-adam", "beta2": 0.9}}, id="row-wise Adam"),
    ],
)
def test_stopped_and_resumed(tmp_path: Path, corpus: Corpus, unbroken_of: MakeRun, sections: dict[str, Any]) -> None:
    training = {"evaluations_per_epoch": 3, **sections.get("training", {})}
    config = small_config(corpus, **{**sections, "training": training})
    unbroken = unbroken_of(config, corpus)
    broken = create_run(tmp_path / "broken", config, corpus)
    # Before the first evaluation, between two, at the end of an epoch and right after it.
    train_in_pieces(broken, corpus, [3, 12, 25, 26])
    assert_the_same_to_the_bit(broken, unbroken)


def test_a_torn_state_falls_back_to_the_one_before(tmp_path: Path, corpus: Corpus, unbroken_of: MakeRun) -> None:
    config = small_config(corpus, **RANDOM, training={"evaluations_per_epoch": 3})
    unbroken = unbroken_of(config, corpus)
    broken = create_run(tmp_path / "broken", config, corpus)

    def tear(run: RunDirectory) -> None:
        newest = state_files(run.path)[-1]
        newest.write_bytes(newest.read_bytes()[:-100])
        append_metrics(run.path, {**read_metrics(run.path).records[-1], "step": 17})

    # State 9 was saved before an evaluation, which is not made again; one at 17 is beyond it, and is.
    watcher = train_in_pieces(broken, corpus, [17], tear)
    (sentence,) = [sentence for sentence in watcher.sentences if "previous checkpoint" in sentence]
    assert "state-000000000017.safetensors' is incomplete or not a safetensors file" in sentence
    assert sentence.endswith("The previous checkpoint is used.")
    assert [record["step"] for record in watcher.records] == [9, 17, 25, 34, 42, 50]
    assert_the_same_to_the_bit(broken, unbroken)


def test_the_best_model_stays_the_best(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    perplexities = iter([5.0, 3.0, 4.0, 3.5, 6.0, 7.0])
    plain = trainer.evaluate
    monkeypatch.setattr(
        trainer, "evaluate", lambda *arguments, **_: dataclasses.replace(plain(*arguments), ppl_f=next(perplexities))
    )
    run = create_run(tmp_path / "run", small_config(corpus, training={"evaluations_per_epoch": 3}), corpus)
    train_in_pieces(run, corpus, [20])
    _, metadata = read_tensors(run.path / MODEL_FILE, MODEL_FORMAT)
    assert metadata["step"] == "17"


@contextlib.contextmanager
def signal_at(monkeypatch: pytest.MonkeyPatch, split: str, number: int, evaluation: int = 1) -> Iterator[None]:
    """Send a signal in the middle of an evaluation, the first on this split or a later one."""
    seen = 0

    def evaluating(self: Watcher, told: str, num_done: int, num_tokens: int) -> None:
        nonlocal seen
        seen += told == split and 0 < num_done < num_tokens
        if seen == evaluation and told == split:
            seen += 1
            signal.raise_signal(number)

    with monkeypatch.context() as patched, raise_on_signals():
        patched.setattr(Watcher, "evaluating", evaluating)
        yield


@pytest.fixture(scope="module")
def long_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Give a corpus whose valid and test take more than one block to evaluate."""
    sizes = {"train": 1003, "valid": 1200, "test": 1201}
    splits = {name: random_ids(size, seed=size) for name, size in sizes.items()}
    return write_corpus(tmp_path_factory.mktemp("long") / "corpus", splits)


@pytest.mark.parametrize("checkpoint_seconds", [600.0, math.inf], ids=["saved", "saved only when stopped"])
@pytest.mark.parametrize("split", ["valid", "test"])
def test_stopped_while_it_evaluates(
    tmp_path: Path,
    long_corpus: Corpus,
    unbroken_of: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    split: str,
    checkpoint_seconds: float,
) -> None:
    """It stops at once, and what is resumed evaluates what is due, once."""
    settings = {"evaluations_per_epoch": 3, "checkpoint_seconds": checkpoint_seconds}
    config = small_config(long_corpus, **RANDOM, training=settings)
    unbroken, broken = unbroken_of(config, long_corpus), create_run(tmp_path / "broken", config, long_corpus)
    watcher = Watcher()
    with signal_at(monkeypatch, split, signal.SIGTERM), pytest.raises(Stopped) as stopped:
        run_training(broken, long_corpus, CPU, watcher)
    assert stopped.value.status == 143
    due = [9, 17, 25, 34, 42, 50] if split == "valid" else []
    assert [record["step"] for record in watcher.records] == ([] if due else [9, 17, 25, 34, 42, 50])
    assert newest_state(broken)[1]["step"] == (9 if due else 50)
    assert read_summary(broken.path)["status"] == "stopped"
    watcher = Watcher()
    assert run_training(broken, long_corpus, CPU, watcher, resume=True)["status"] == "finished"
    assert [record["step"] for record in watcher.records] == due
    assert metrics(broken) == metrics(unbroken)
    if math.isfinite(checkpoint_seconds):
        assert_the_same_to_the_bit(broken, unbroken)


def test_a_setting_that_config_toml_has_lost_is_not_taken_for_its_default(tmp_path: Path, corpus: Corpus) -> None:
    run = create_run(tmp_path / "run", small_config(corpus, optimiser={"clip_norm": 3.0}), corpus)
    run_training(run, corpus, CPU, Watcher())
    settings = (run.path / "config.toml").read_text(encoding="utf-8")
    (run.path / "config.toml").write_text(settings.replace("clip_norm = 3.0\n", ""), encoding="utf-8")
    with pytest.raises(UserError, match=r"has no optimiser.clip_norm, with which the run was trained: restore it"):
        run_training(RunDirectory.open(run.path), corpus, CPU, Watcher(), resume=True)


def test_an_evaluation_counts_that_is_no_longer_due(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed after an evaluation, and resumed with fewer of them, knows its best model."""
    config = small_config(corpus, training={"evaluations_per_epoch": 5, "epochs": 1})
    run = create_run(tmp_path / "run", config, corpus)
    steps, plain = iter(range(1000)), LanguageModel.loss_sum

    def loss_sum(self: LanguageModel, *arguments: Any) -> Any:
        if next(steps) == 5:  # right after the first evaluation, before another state
            raise KeyboardInterrupt
        return plain(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(LanguageModel, "loss_sum", loss_sum)
        with pytest.raises(KeyboardInterrupt):
            run_training(run, corpus, CPU, Watcher())
    (first,) = read_metrics(run.path).records
    assert first["step"] == newest_state(run)[1]["step"] == 5
    assert newest_state(run)[1]["best_step"] == 0
    changed = change_settings(run.config, ["training.evaluations_per_epoch=1"])
    resumed = trainer.Trainer(dataclasses.replace(run, config=changed), corpus, CPU, Watcher())
    resumed.resume()
    assert (resumed.progress.best_step, resumed.progress.best_perplexity) == (5, first["ppl_f"])


def test_the_validation_text_may_not_change(tmp_path: Path, corpus: Corpus) -> None:
    run = create_run(tmp_path / "run", small_config(corpus), corpus)
    run_training(run, corpus, CPU, Watcher())
    changed = change_settings(run.config, ["training.max_valid_tokens=100"])
    with pytest.raises(UserError, match=r"training.max_valid_tokens 0, not 100"):
        run_training(dataclasses.replace(run, config=changed), corpus, CPU, Watcher(), resume=True)


@pytest.mark.parametrize("at_step", [0, 15, 25])
def test_stopped_in_the_middle_of_a_step(
    tmp_path: Path, corpus: Corpus, unbroken_of: MakeRun, monkeypatch: pytest.MonkeyPatch, at_step: int
) -> None:
    """It does not wait for the step's end, and the step is made again from its beginning."""
    config = small_config(corpus, **RANDOM)
    unbroken, broken = unbroken_of(config, corpus), create_run(tmp_path / "broken", config, corpus)
    steps, plain = iter(range(1000)), LanguageModel.loss_sum

    def loss_sum(self: LanguageModel, *arguments: Any) -> Any:
        result = plain(self, *arguments)
        if next(steps) == at_step:
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("the step went on")
        return result

    with monkeypatch.context() as patched:
        patched.setattr(LanguageModel, "loss_sum", loss_sum)
        with raise_on_signals(), pytest.raises(Stopped):
            run_training(broken, corpus, CPU, Watcher())
    assert newest_state(broken)[1]["step"] == at_step
    assert read_summary(broken.path)["status"] == "stopped"
    run_training(broken, corpus, CPU, Watcher(), resume=True)
    assert metrics(broken) == metrics(unbroken)
    assert_the_same_to_the_bit(broken, unbroken)


def test_the_state_is_saved_before_an_evaluation(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = []
    monkeypatch.setattr(trainer, "evaluate", lambda *_, **__: saved.extend(state_files(tmp_path / "run")) or 1 / 0)
    run = create_run(tmp_path / "run", small_config(corpus), corpus)
    with pytest.raises(ZeroDivisionError):
        run_training(run, corpus, CPU, Watcher())
    assert [path.name for path in saved] == ["state-000000000025.safetensors"]


def test_without_the_command_line_ctrl_c_is_what_it_always_is(tmp_path: Path, corpus: Corpus) -> None:
    """It raises KeyboardInterrupt, but only when the run is saved."""
    run = create_run(tmp_path / "run", small_config(corpus), corpus)
    steps = iter(range(1, 1000))
    with pytest.raises(KeyboardInterrupt):
        run_training(
            run, corpus, CPU, Watcher(), should_stop=lambda: next(steps) == 3 and signal.raise_signal(signal.SIGINT)
        )
    assert [path.name for path in state_files(run.path)] == ["state-000000000003.safetensors"]
    assert read_summary(run.path)["status"] == "stopped"


def test_leftovers_of_a_killed_save_are_cleared(tmp_path: Path, corpus: Corpus) -> None:
    run = create_run(tmp_path / "run", small_config(corpus), corpus)

    def leave(run: RunDirectory) -> None:
        (run.path / ".state-000000000004.safetensors.77.partial").write_bytes(b"half")

    train_in_pieces(run, corpus, [3], leave)
    assert list(run.path.glob(".*")) == []


def test_no_state_is_whole(tmp_path: Path, corpus: Corpus) -> None:
    run = create_run(tmp_path / "run", small_config(corpus), corpus)
    run_training(run, corpus, CPU, Watcher(), should_stop=lambda: True)
    for path in state_files(run.path):
        path.write_bytes(b"")
    with pytest.raises(UserError, match=r"has no checkpoint to resume from.*is incomplete"):
        run_training(run, corpus, CPU, Watcher(), resume=True)


def test_a_run_with_figures_and_no_state_is_left_alone(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To begin it anew would take away its figures and its best model."""
    settings = {"evaluations_per_epoch": 3, "checkpoint_seconds": math.inf}
    run = create_run(tmp_path / "run", small_config(corpus, training=settings), corpus)
    with monkeypatch.context() as patched:
        patched.setattr(trainer.Trainer, "save", lambda self: None)
        run_training(run, corpus, CPU, Watcher(), should_stop=lambda: bool(read_metrics(run.path).records))
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"has figures up to step 9 but no state to resume from .* is inf"):
        run_training(run, corpus, CPU, Watcher(), resume=True)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def changed(run: RunDirectory, *settings: str) -> RunDirectory:
    return dataclasses.replace(run, config=change_settings(run.config, settings))


def test_what_may_change_is_changed_and_written_down(tmp_path: Path, corpus: Corpus) -> None:
    run = create_run(tmp_path / "run", small_config(corpus), corpus)
    run_training(run, corpus, CPU, Watcher(), should_stop=lambda: True)
    watcher = Watcher()
    other = changed(run, "optimiser.learning_rate=0.025", "training.epochs=3", "training.evaluations_per_epoch=2")
    stop = iter(range(1, 1000))
    summary = run_training(other, corpus, CPU, watcher, resume=True, should_stop=lambda: next(stop) == 20)
    changes = [
        {"step": 1, "setting": "optimiser.learning_rate", "from": 0.1, "to": 0.025},
        {"step": 1, "setting": "training.epochs", "from": 2, "to": 3},
        {"step": 1, "setting": "training.evaluations_per_epoch", "from": 1, "to": 2},
    ]
    assert summary["changes"] == changes
    assert "From step 1 on, optimiser.learning_rate is 0.025 instead of 0.1." in watcher.sentences
    # From now on these are the run's settings.
    run = RunDirectory.open(run.path)
    assert run.config == other.config
    watcher = Watcher()
    summary = run_training(run, corpus, CPU, watcher, resume=True)
    assert (summary["status"], summary["step"], summary["changes"]) == ("finished", 75, changes)
    assert [record["step"] for record in read_metrics(run.path).records] == [13, 25, 38, 50, 63, 75]
    assert read_metrics(run.path).records[0]["lr"] == pytest.approx(0.025 * (1 - 12 / 75))
    # A run that is finished goes on for more epochs.
    summary = run_training(changed(run, "training.epochs=4"), corpus, CPU, Watcher(), resume=True)
    assert summary["step"] == 100
    assert summary["changes"][3:] == [{"step": 75, "setting": "training.epochs", "from": 3, "to": 4}]


def test_what_may_not_change_is_named(tmp_path: Path, corpus: Corpus) -> None:
    run = create_run(tmp_path / "run", small_config(corpus), corpus)
    run_training(run, corpus, CPU, Watcher(), should_stop=lambda: True)
    other = changed(run, "training.batch_size=4", "loss.log_z=7", "training.epochs=3")
    with pytest.raises(UserError, match=r"settings \(loss.log_z 9.0, not 7.0, training.batch_size 8, not 4\), which"):
        run_training(other, corpus, CPU, Watcher(), resume=True)
    assert RunDirectory.open(run.path).config == run.config


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_state_of_version_0_1_0(tmp_path: Path, corpus: Corpus, is_changed: bool) -> None:
    """It is known by a digest of config.toml, which had fewer settings then."""
    run = create_run(tmp_path / "run", small_config(corpus), corpus)
    run_training(run, corpus, CPU, Watcher(), should_stop=lambda: True)
    old = "".join(
        line for line in to_toml(run.config).splitlines(keepends=True) if not line.startswith(("max_test", "softmax"))
    )
    (run.path / "config.toml").write_text(old, encoding="utf-8")
    (state,) = state_files(run.path)
    tensors, metadata = read_tensors(state, STATE_FORMAT)
    record = json.loads(metadata["record"])
    for key in ("evaluated_step", "best_step", "grad_norm", "changes"):
        del record[key]
    owner = hashlib.sha256(f"{old}\n{run.vocabulary.digest}".encode()).hexdigest()
    write_tensors(state, tensors, STATE_FORMAT, {"owner": owner, "record": json.dumps(record)})
    run = RunDirectory.open(run.path)
    if is_changed:
        run = changed(run, "training.epochs=3")
        # Changed and killed, it still goes on.
        run_training(run, corpus, CPU, Watcher(), resume=True, should_stop=lambda: True)
        run = RunDirectory.open(run.path)
    summary = run_training(run, corpus, CPU, Watcher(), resume=True)
    assert (summary["status"], summary["step"]) == ("finished", 75 if is_changed else 50)
    (run.path / "config.toml").write_text(old.replace("seed = 1", "seed = 2"), encoding="utf-8")
    write_tensors(state_files(run.path)[-1], tensors, STATE_FORMAT, {"owner": owner, "record": json.dumps(record)})
    watcher = Watcher()
    with pytest.raises(UserError, match="belongs to another run"):
        run_training(RunDirectory.open(run.path), corpus, CPU, watcher, resume=True)


@pytest.mark.parametrize("name", ["ffnn", "relu-lstm", "transformer"])
def test_a_run_from_before_recurrent_layers_had_a_number(
    tmp_path: Path, corpus: Corpus, name: str, bnce: Command
) -> None:
    """Each such run wrote six layers, and 0 for heads that were chosen for it."""
    config = small_config(corpus, model={"name": name, "dropout": 0.2})
    unbroken, run = (create_run(tmp_path / place, config, corpus) for place in ("unbroken", "run"))
    run_training(unbroken, corpus, CPU, Watcher())
    run_training(run, corpus, CPU, Watcher(), should_stop=iter([False] * 30 + [True]).__next__)
    old = to_toml(config).replace("format = 2\n", "")
    old = re.sub("num_layers = .*", "num_layers = 6", re.sub("num_heads = .*", "num_heads = 0", old))
    assert old != to_toml(config)
    (run.path / "config.toml").write_text(old, encoding="utf-8")
    for state in state_files(run.path):
        tensors, metadata = read_tensors(state, STATE_FORMAT)
        write_tensors(state, tensors, STATE_FORMAT, {**metadata, "settings": old})
    tensors, metadata = read_tensors(run.path / MODEL_FILE, MODEL_FORMAT)
    network = {**json.loads(metadata["network"]), "num_layers": 6, "num_heads": 0}
    del network["format"]
    write_tensors(run.path / MODEL_FILE, tensors, MODEL_FORMAT, {**metadata, "network": json.dumps(network)})
    assert RunDirectory.open(run.path).config == config
    load_model(RunDirectory.open(run.path))
    assert bnce("info", run.path, "--check").status == 0
    run_training(RunDirectory.open(run.path), corpus, CPU, Watcher(), resume=True)
    ours, theirs = (read_tensors(each.path / MODEL_FILE, MODEL_FORMAT)[0] for each in (run, unbroken))
    assert bits(ours) == bits(theirs)


def test_a_state_from_before_a_setting_was_there(tmp_path: Path, corpus: Corpus) -> None:
    run = create_run(tmp_path / "run", small_config(corpus), corpus)
    older = "".join(line for line in run.origin["settings"].splitlines(keepends=True) if "patience" not in line)
    assert settings_of_state(run, {"settings": older}) == run.config


@pytest.mark.parametrize("line", [b"null", b'{"step": 9, "ppl_f": "\xff"}', b"[" * 100_000, b"{}", b'"step"'])
def test_damaged_metrics_do_not_stop_a_resume(tmp_path: Path, corpus: Corpus, line: bytes) -> None:
    run = create_run(tmp_path / "run", small_config(corpus, training={"evaluations_per_epoch": 3}), corpus)
    run_training(run, corpus, CPU, Watcher(), should_stop=lambda: len(read_metrics(run.path).records) == 2)
    _, second = (run.path / "metrics.jsonl").read_bytes().splitlines()
    (run.path / "metrics.jsonl").write_bytes(b"\n".join([line, second, b""]))
    watcher = Watcher()
    assert run_training(run, corpus, CPU, watcher, resume=True)["status"] == "finished"
    assert [record["step"] for record in read_metrics(run.path).records] == [17, 25, 34, 42, 50]
    assert f"Damaged lines in '{run.path / 'metrics.jsonl'}' were skipped: 1." in watcher.sentences


def test_a_run_stopped_before_its_first_state_starts(tmp_path: Path, corpus: Corpus) -> None:
    whole, killed = (create_run(tmp_path / name, small_config(corpus), corpus) for name in ("whole", "killed"))
    run_training(whole, corpus, CPU, Watcher())
    watcher = Watcher()
    run_training(killed, corpus, CPU, watcher, resume=True)
    found, expected = (load_model(run).state_dict() for run in (killed, whole))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_state_of_another_run_is_refused(tmp_path: Path, corpus: Corpus) -> None:
    one, other = (
        create_run(tmp_path / f"run-{seed}", small_config(corpus, training={"seed": seed}), corpus) for seed in (1, 2)
    )
    run_training(one, corpus, CPU, Watcher(), should_stop=lambda: True)
    (state,) = state_files(one.path)
    state.rename(other.path / state.name)
    with pytest.raises(UserError, match="belongs to another run"):
        run_training(other, corpus, CPU, Watcher(), resume=True)


# From here on with processes, as a person has them.

SETTINGS = [
    "model.embedding_size=6",
    "model.hidden_size=8",
    "model.bottleneck_size=7",
    "model.dropout=0.2",
    "loss.num_noise=4",
    "optimiser.warmup_steps=5",
    "training.batch_size=8",
    "training.num_steps=5",
    "training.epochs=4",
    "training.evaluations_per_epoch=1",
    "training.checkpoint_seconds=0.05",
]
NUM_STEPS = 4 * 25


def command(corpus: Corpus, out: Path) -> list[str]:
    arguments = ["train", "wiki", "--model", "relu-lstm", "--loss", "snce", "--corpus", str(corpus.directory)]
    arguments += ["--out", str(out), "--device", "cpu"]
    for setting in SETTINGS:
        arguments += ["--set", setting]
    return arguments


@pytest.fixture(scope="module")
def unbroken(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Train the same run in this process in one go."""
    out = tmp_path_factory.mktemp("unbroken") / "run"
    app(command(corpus, out), standalone_mode=False)
    return RunDirectory.open(out)


def test_killed_and_resumed(tmp_path: Path, corpus: Corpus, unbroken: RunDirectory) -> None:
    out = tmp_path / "run"
    words = command(corpus, out)
    # Past the evaluation at step 25, so that there are metrics to keep, and the one at step 50, which leaves a state.
    is_late = lambda directory, step, *_: step > 50  # noqa: E731
    assert killed_in(lambda: app(words, standalone_mode=False), checkpoints, "save_state", is_late)
    run = RunDirectory.open(out)
    _, record = newest_state(run)
    assert 25 < record["step"] < NUM_STEPS
    assert json.loads((out / "summary.json").read_text(encoding="utf-8"))["status"] == "running"
    app([*words, "--resume"], standalone_mode=False)
    assert_the_same_to_the_bit(run, unbroken)


def test_ctrl_c_saves_and_says_how_to_go_on(
    bnce: Command, tmp_path: Path, corpus: Corpus, unbroken: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a run"
    plain = checkpoints.save_state

    def interrupted(*arguments: Any) -> None:
        plain(*arguments)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "save_state", interrupted)
        ended = bnce(*command(corpus, out))
    assert (ended.status, ended.stdout) == (130, "")
    assert "Traceback" not in ended.stderr
    told = re.search(
        r"^Stopped and saved at step (\d+)\. Continue with  bnce (train .* --resume)$", ended.stderr, re.MULTILINE
    )
    assert told is not None
    run = RunDirectory.open(out)
    _, record = newest_state(run)
    assert record["step"] == int(told[1]) < NUM_STEPS
    assert json.loads((out / "summary.json").read_text(encoding="utf-8"))["status"] == "stopped"
    # What it says to type works as it stands.
    app(shlex.split(told[2]), standalone_mode=False)
    assert_the_same_to_the_bit(run, unbroken)
