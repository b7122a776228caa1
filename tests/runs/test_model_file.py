"""A run's model on disk: it comes back bit for bit, and one that does not belong to the run is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import Command
from run_files import num_parameters_of
from safetensors.torch import load_file, save_file
from small_corpus import small_model, small_run

from bnce import UserError, load
from bnce.export.to_safetensors import export_rows
from bnce.runs.directory import Run
from bnce.runs.model_file import count_parameters, load_model

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
    with pytest.raises(UserError, match="has no model: train it up to its first evaluation"):
        load(run)


def test_a_model_of_other_sizes_is_refused(tmp_path: Path, run: Path) -> None:
    wider = small_run(tmp_path / "wider", "relu-lstm", hidden_size=9)
    (wider / MODEL_FILE).rename(run / MODEL_FILE)
    with pytest.raises(UserError, match=r"model.safetensors' is the model of another run, with other words, counts or"):
        load(run)
    # As transformers saves it, which says nothing of the files beside it.
    save_file(load_file(run / MODEL_FILE), run / MODEL_FILE, {"format": "pt"})
    with pytest.raises(UserError, match=r"does not fit the run's config.toml and vocab.txt: size mismatch") as caught:
        load_model(Run.open(run))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("config.toml", b"[model\n", "config.toml' is not valid TOML"),
        ("config.toml", b"\xff\xfe", "config.toml' is not valid TOML"),
        ("config.toml", b"format = 3\n[model]\nname = 'gru'\n", "Unknown model 'gru'"),
        ("config.toml", b"format = 3\n[training]\nepoch = 3\n", r"'epoch'.*Did you mean 'epochs'\?"),
        ("run.json", b"{", "another version: run.json cannot be read"),
        ("run.json", b"[]", "another version: run.json cannot be read .it is not a JSON object"),
        (
            "run.json",
            b'{"format": 2}',
            "another version: run.json has format 2, and this version reads format 3",
        ),
        (
            "run.json",
            None,
            "another version: run.json is missing; restore its files, or train it again",
        ),
        ("counts.npy", b"", "another version: counts.npy has 0 bytes, but 368 were written"),
        ("vocab.txt", None, "another version: vocab.txt is missing"),
        (SPELLING_FILE, None, "another version: spelling.safetensors is missing"),
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


def change_last_byte(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def change_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("vocab.txt", swap_lines),
        ("counts.npy", change_counts),
        ("run.json", lambda path: change_text(path, '"lowercase": false', '"lowercase": true')),
        ("config.toml", lambda path: change_text(path, "hidden_size = 8", "hidden_size = 9")),
        (SPELLING_FILE, change_last_byte),
    ],
)
def test_files_that_are_not_those_of_the_run(run: Path, name: str, change: Callable[[Path], object]) -> None:
    load(run)
    change(run / name)
    with pytest.raises(UserError, match=rf"is damaged or of .*{name} has changed since it was written; restore its"):
        load(run)


@pytest.mark.parametrize("other", [{"words": ("</s>", "<unk>", *"abcd")}, {"spelt": ("yak",)}, {"spelt": ()}])
def test_a_description_of_another_run_is_not_that_of_the_model(run: Path, tmp_path: Path, other: Any) -> None:
    small_run(tmp_path / "other", "relu-lstm", **other)
    (tmp_path / "other" / MODEL_FILE).write_bytes((run / MODEL_FILE).read_bytes())
    with pytest.raises(UserError, match=r"model.safetensors' is the model of another run, with other words, counts or"):
        load(tmp_path / "other")


def test_a_spelling_model_that_came_later_is_refused(run: Path, tmp_path: Path) -> None:
    without = small_run(tmp_path / "without", spelt=())
    load(without)
    (without / SPELLING_FILE).write_bytes((run / SPELLING_FILE).read_bytes())
    with pytest.raises(UserError, match=f"another version: {SPELLING_FILE} was added after it was written"):
        load(without)


def test_a_model_that_does_not_tell_of_the_other_files_opens(run: Path) -> None:
    save_file(load_file(run / MODEL_FILE), run / MODEL_FILE, {"format": "pt"})
    load(run)


def test_a_run_is_opened_and_described_without_pytorch(trained: Path, texts: Path, tmp_path: Path) -> None:
    """In a process in which PyTorch cannot be imported."""
    commands = [
        ["info", str(trained), "--json"],
        ["compare", str(trained), "--json"],
        ["ngram", str(texts / "test.txt"), "--vocab", str(trained), "--out", str(tmp_path / "a.arpa"), "--json"],
    ]
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from bnce.__main__ import main\n"
        "from bnce.runs.directory import Run\n"
        f"Run.open({str(trained)!r})\n"
        f"for command in {commands!r}:\n"
        "    sys.argv = ['bnce', *command]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert end.code == 0, command\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    info, compared, _ = map(json.loads, done.stdout.splitlines())
    assert info["num_parameters"] == compared["rows"][0]["num_parameters"] == num_parameters_of(trained)


def test_parameters_are_counted_by_the_shapes_in_the_file(tmp_path: Path) -> None:
    for number, (model, loss, row_format) in enumerate(
        [("relu-lstm", "bnce", "int8"), ("ffnn", "adaptive-softmax", "int8"), ("transformer", "softmax", "float16")]
    ):
        run = Run.open(small_run(tmp_path / f"run-{number}", model, loss))
        expected = small_model(model, loss).num_parameters_by_part
        assert count_parameters(run) == expected
        export_rows(run, tmp_path / f"packed-{number}", row_format)
        assert count_parameters(Run.open(tmp_path / f"packed-{number}")) == expected
        (run.path / "model.safetensors").unlink()
        assert count_parameters(run) is None
