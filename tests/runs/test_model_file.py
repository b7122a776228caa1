"""A run's model on disk: it comes back bit for bit, and one that does not belong to the run is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from command import Command
from safetensors.torch import load_file, save_file
from small_corpus import change_weights, small_run

from bnce import UserError, load

MODEL_FILE, SPELLING_FILE = "model.safetensors", "spelling.safetensors"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return small_run(tmp_path / "run", "relu-lstm")


def test_a_model_comes_back_bit_for_bit_and_ready_for_use(run: Path, bnce: Command, tmp_path: Path) -> None:
    drawn = torch.get_rng_state()
    load(run)
    assert torch.equal(torch.get_rng_state(), drawn), "a start that the file replaces was drawn"
    assert bnce("export", run, "--to", "safetensors", "--rows", "float32", "--out", tmp_path / "copy").status == 0
    before, after = (load_file(path / MODEL_FILE) for path in (run, tmp_path / "copy"))
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_a_run_without_a_model_says_so(run: Path) -> None:
    (run / MODEL_FILE).unlink()
    with pytest.raises(UserError, match="has no model yet: train it up to its first evaluation"):
        load(run)


def test_a_model_of_other_sizes_is_refused(tmp_path: Path, run: Path) -> None:
    wider = small_run(tmp_path / "wider", "relu-lstm", hidden_size=9)
    (wider / MODEL_FILE).rename(run / MODEL_FILE)
    with pytest.raises(UserError, match=r"config.toml \(hidden_size was 9, is 8\) changed after model.safetensors was"):
        load(run)
    # As transformers saves it, which says nothing of the files beside it.
    save_file(load_file(run / MODEL_FILE), run / MODEL_FILE, {"format": "pt"})
    with pytest.raises(UserError, match=r"does not fit the run's config.toml and vocab.txt: size mismatch") as caught:
        load(run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("config.toml", b"[model\n", "config.toml' is not valid TOML"),
        ("config.toml", b"\xff\xfe", "config.toml' is not valid TOML"),
        ("config.toml", b"format = 3\n[model]\nname = 'gru'\n", "Unknown model 'gru'"),
        ("config.toml", b"format = 3\n[model]\nhiden_size = 3\n", r"'hiden_size'.*Did you mean 'hidden_size'\?"),
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
def test_damage_is_named(run: Path, name: str, content: bytes | None, match: str) -> None:
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content)
    with pytest.raises(UserError, match=match):
        load(run)


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
            lambda path: change_text(path, "hidden_size = 8", "hidden_size = 9"),
            r"config.toml \(hidden_size was 8, is 9\) changed",
        ),
        (SPELLING_FILE, lambda path: path.write_bytes(b"another file"), "spelling.safetensors changed"),
    ],
)
def test_files_that_are_not_those_of_the_model(
    run: Path, name: str, change: Callable[[Path], object], match: str
) -> None:
    load(run)
    change(run / name)
    with pytest.raises(UserError, match=f"is damaged: {match} after model.safetensors was written; restore"):
        load(run)


def test_a_spelling_model_that_came_later_is_refused(run: Path) -> None:
    content = (run / SPELLING_FILE).read_bytes()
    (run / SPELLING_FILE).unlink()
    change_weights(run)
    load(run)
    (run / SPELLING_FILE).write_bytes(content)
    with pytest.raises(
        UserError, match=f"{SPELLING_FILE} was not there when model.safetensors was written: remove it.$"
    ):
        load(run)


def test_a_spelling_model_that_is_gone_is_missing(run: Path) -> None:
    (run / SPELLING_FILE).unlink()
    with pytest.raises(UserError, match=f"is damaged: {SPELLING_FILE} is missing: restore the file with which model"):
        load(run)


def test_a_model_that_does_not_tell_of_the_other_files_opens(run: Path) -> None:
    save_file(load_file(run / MODEL_FILE), run / MODEL_FILE, {"format": "pt"})
    load(run)
    change_counts(run / "counts.npy")
    load(run)
