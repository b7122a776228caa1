"""A run's model on disk: it comes back bit for bit, and one that does not belong to the run is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from small_corpus import small_config

from bnce import Corpus, UserError
from bnce.runs.checkpoint import MODEL_FILE, MODEL_FORMAT, read_model, write_tensors
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import build_model, load_model, save_weights
from bnce.spelling.model import SPELLING_FILE


def test_a_model_comes_back_bit_for_bit_and_ready_for_use(run: RunDirectory) -> None:
    model = build_model(run)
    save_weights(run, model.state_dict(), 5)
    drawn = torch.get_rng_state()
    loaded = load_model(run)
    assert torch.equal(torch.get_rng_state(), drawn), "a start that the file replaces was drawn"
    assert not loaded.training
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(loaded.output.noise.log_probs_V, model.output.noise.log_probs_V)


def test_a_run_of_other_noise_than_its_batches_opens(tmp_path: Path, corpus: Corpus) -> None:
    """Earlier versions trained such."""
    config = small_config(corpus, loss={"name": "bnce", "noise": "uniform"})
    run = RunDirectory.create(tmp_path / "uniform", config, corpus)
    save_weights(run, build_model(run).state_dict(), 5)
    assert load_model(run).output.loss_name == "bnce"


def test_a_run_without_a_model_says_so(run: RunDirectory) -> None:
    with pytest.raises(UserError, match="has no model yet: train it up to its first evaluation"):
        load_model(run)


def test_a_model_of_other_sizes_is_refused(tmp_path: Path, run: RunDirectory, corpus: Corpus) -> None:
    wider = RunDirectory.create(tmp_path / "wider", small_config(corpus, model={"hidden_size": 9}), corpus)
    save_weights(wider, build_model(wider).state_dict(), 1)
    (wider.path / MODEL_FILE).rename(run.path / MODEL_FILE)
    with pytest.raises(UserError, match=r"config.toml \(hidden_size was 9, is 8\) changed after model.safetensors was"):
        load_model(run)
    write_tensors(run.path / MODEL_FILE, build_model(wider).state_dict(), MODEL_FORMAT, {"owner": "of 0.1.0"})
    with pytest.raises(UserError, match=r"does not fit the run's config.toml and vocab.txt: size mismatch") as caught:
        load_model(run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("config.toml", b"[model\n", "config.toml' is not valid TOML"),
        ("config.toml", b"\xff\xfe", "config.toml' is not valid TOML"),
        ("config.toml", b"[model]\nname = 'gru'\n", "Unknown model 'gru'"),
        ("config.toml", b"[model]\nhiden_size = 3\n", r"'hiden_size'.*Did you mean 'hidden_size'\?"),
        ("normaliser.json", b"{", "is incomplete or damaged"),
        ("normaliser.json", b"[]", "is incomplete or damaged"),
        ("normaliser.json", None, "is incomplete or damaged"),
        ("counts.npy", b"", "is incomplete or damaged"),
        ("counts.npy", b"nonsense", "is incomplete or damaged"),
        ("vocab.txt", None, "vocab.txt"),
        ("vocab.txt", b"</s>\n<unk>\na\na\n", "has 'a' both on line"),
        ("vocab.txt", b"</s>\n<unk>\na\n", "counts.npy and vocab.txt differ in size"),
        (MODEL_FILE, b"", "is incomplete or not a safetensors file"),
        (MODEL_FILE, b"nonsense" * 100, "is incomplete or not a safetensors file"),
    ],
)
def test_damage_is_named(run: RunDirectory, name: str, content: bytes | None, match: str) -> None:
    save_weights(run, build_model(run).state_dict(), 1)
    if content is None:
        (run.path / name).unlink()
    else:
        (run.path / name).write_bytes(content)
    with pytest.raises(UserError, match=match):
        load_model(RunDirectory.open(run.path))


def swap_lines(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    lines[5], lines[6] = lines[6], lines[5]
    path.write_text("".join(lines))


def change_counts(path: Path) -> None:
    counts = np.load(path)
    counts[[5, 6]] = counts[[5, 6]] + [1, -1]
    np.save(path, counts)


def change_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("vocab.txt", swap_lines, "vocab.txt changed"),
        ("counts.npy", change_counts, "counts.npy changed"),
        (
            "normaliser.json",
            lambda path: change_text(path, "false", "true"),
            r"normaliser.json \(lowercase was False, is True\) changed",
        ),
        (
            "config.toml",
            lambda path: change_text(path, 'name = "relu-lstm"', 'name = "lstm"'),
            r"config.toml \(name was 'relu-lstm', is 'lstm'\) changed",
        ),
        (SPELLING_FILE, lambda path: path.write_bytes(b"another file"), "spelling.safetensors changed"),
    ],
)
def test_files_that_are_not_those_of_the_model(
    run: RunDirectory, name: str, change: Callable[[Path], object], match: str
) -> None:
    (run.path / SPELLING_FILE).write_bytes(b"a file")
    save_weights(run, build_model(run).state_dict(), 1)
    load_model(RunDirectory.open(run.path))
    change(run.path / name)
    with pytest.raises(UserError, match=f"is damaged: {match} after model.safetensors was written; restore"):
        load_model(RunDirectory.open(run.path))


def test_a_spelling_model_that_came_later_is_refused(run: RunDirectory) -> None:
    file = run.path / SPELLING_FILE
    content = file.read_bytes() if file.is_file() else b"</s>\n<unk>\na\n"
    file.unlink(missing_ok=True)
    save_weights(run, build_model(run).state_dict(), 1)
    load_model(run)
    file.write_bytes(content)
    with pytest.raises(
        UserError, match=f"{SPELLING_FILE} was not there when model.safetensors was written: remove it.$"
    ):
        load_model(run)
    # Earlier versions wrote nothing of a file that was not there.
    tensors, metadata = read_model(run.path / MODEL_FILE)
    told = {key: value for key, value in metadata.items() if value}
    write_tensors(run.path / MODEL_FILE, tensors, MODEL_FORMAT, told)
    load_model(run)


def test_a_spelling_model_that_is_gone_is_missing(run: RunDirectory) -> None:
    (run.path / SPELLING_FILE).write_bytes(b"a file")
    save_weights(run, build_model(run).state_dict(), 1)
    (run.path / SPELLING_FILE).unlink()
    with pytest.raises(UserError, match=f"is damaged: {SPELLING_FILE} is missing: restore the file with which model"):
        load_model(run)


def test_a_model_that_does_not_tell_of_the_other_files_opens(run: RunDirectory) -> None:
    model = build_model(run)
    metadata = {"owner": run.owner, "step": "1", "vocabulary": run.vocabulary.digest}
    write_tensors(run.path / MODEL_FILE, model.state_dict(), MODEL_FORMAT, metadata)
    load_model(run)
    change_counts(run.path / "counts.npy")
    load_model(RunDirectory.open(run.path))
    swap_lines(run.path / "vocab.txt")
    with pytest.raises(UserError, match=r"vocab.txt changed after model.safetensors was written"):
        load_model(RunDirectory.open(run.path))


def test_a_flipped_bit_in_the_model_is_noticed(run: RunDirectory) -> None:
    save_weights(run, build_model(run).state_dict(), 1)
    content = bytearray((run.path / MODEL_FILE).read_bytes())
    content[-5] ^= 1
    (run.path / MODEL_FILE).write_bytes(content)
    with pytest.raises(UserError, match="is damaged: its checksum does not match"):
        load_model(run)
