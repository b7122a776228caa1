"""Which run goes on: what is kept of one that was begun, and what is cleared away."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from command import Command
from small_corpus import Watcher, small_config, small_corpus

from bnce import Corpus, UserError
from bnce.config import change_settings, to_toml
from bnce.runs.checkpoint import MODEL_FILE, MODEL_FORMAT, STATE_FORMAT, read_tensors, state_files, write_tensors
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import load_model
from bnce.runs.resuming import check_corpus, is_begun, remove_leftovers, remove_unbegun, settings_of_state
from bnce.training.plan import create_run
from bnce.training.run import run_training

CPU = torch.device("cpu")


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return small_corpus(tmp_path / "corpus", num_train=1003)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give a directory for runs alone, so that whatever is left behind shows."""
    directory = tmp_path / "place"
    directory.mkdir()
    return directory


def test_a_run_that_counted_the_whole_split_still_resumes(place: Path, corpus: Corpus) -> None:
    run = create_run(place / "run", small_config(corpus, training={"max_train_tokens": 500}), corpus)
    np.save(run.path / "counts.npy", corpus.target_counts)
    check_corpus(RunDirectory.open(run.path), corpus)


def test_only_a_run_without_anything_to_keep_is_removed(place: Path, corpus: Corpus) -> None:
    run = create_run(place / "run", small_config(corpus), corpus)
    run.write_json("summary.json", {"status": "running"})
    assert not is_begun(run.path)
    for name in ("state-000000000001.safetensors", "metrics.jsonl", "model.safetensors", "evaluation.json", "mine.txt"):
        (run.path / name).write_text("kept", encoding="utf-8")
        assert is_begun(run.path)
        remove_unbegun(run.path)
        (run.path / name).unlink()
    remove_unbegun(run.path)
    assert list(place.iterdir()) == []


def test_leftovers_of_a_killed_save_are_removed(place: Path, corpus: Corpus) -> None:
    run = create_run(place / "run", small_config(corpus), corpus)
    before = sorted(run.path.iterdir())
    for name in (".model.safetensors.123.partial", ".tmpAb12cD"):
        (run.path / name).write_bytes(b"half")
    (run.path / ".state-000000000004.safetensors.123.partial").mkdir()
    (run.path / ".state-000000000004.safetensors.123.partial" / "state-000000000004.safetensors").write_bytes(b"half")
    remove_leftovers(run.path)
    assert sorted(run.path.iterdir()) == before


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
        run = dataclasses.replace(run, config=change_settings(run.config, ["training.epochs=3"]))
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
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_state_from_before_a_setting_was_there(tmp_path: Path, corpus: Corpus) -> None:
    run = create_run(tmp_path / "run", small_config(corpus), corpus)
    older = "".join(line for line in run.origin["settings"].splitlines(keepends=True) if "patience" not in line)
    assert settings_of_state(run, {"settings": older}) == run.config
