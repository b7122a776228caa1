"""Damaged files the user's way: every command that reads one refuses it in one sentence, with status 2."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command import Command, Refused, settings
from damage import damaged


@pytest.mark.parametrize(
    ("command", "split"),
    [("train", "train"), ("train", "valid"), ("train", "test"), ("evaluate", "train"), ("info", "train")],
)
def test_a_damaged_text_is_refused(
    refused: Refused, corpus: Path, trained: Path, place: Path, tmp_path: Path, command: str, split: str
) -> None:
    """Before anything is made or measured."""
    copy = tmp_path / "corpus"
    shutil.copytree(corpus, copy)
    content = (corpus / f"{split}.npy").read_bytes()
    options = {
        "train": ["train", "wiki", "--corpus", copy, "--out", place / "run", "--device", "cpu", *settings()],
        "evaluate": ["evaluate", trained, "--corpus", copy, "--split", "train", "--device", "cpu"],
        "info": ["info", copy],
    }
    for seed in range(16):
        (copy / f"{split}.npy").write_bytes(changed := damaged(content, seed))
        if changed != content:
            assert f"The corpus '{copy}' is damaged: {split}.npy" in refused(*options[command]), seed
    assert not list(place.iterdir())


@pytest.mark.parametrize("name", ["vocab.txt", "counts.npy", "run.json", "config.toml", "model.safetensors"])
def test_a_damaged_run_never_scores_otherwise(
    bnce: Command, trained: Path, texts: Path, tmp_path: Path, name: str
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    text = tmp_path / "text.txt"
    text.write_text("\n".join((texts / "test.txt").read_text().splitlines()[:5]))
    command = ["score", copy, text, "--device", "cpu"]
    expected = bnce(*command).stdout
    content = (trained / name).read_bytes()
    for seed in range(16):
        (copy / name).write_bytes(damaged(content, seed))
        outcome = bnce(*command)
        assert outcome.status in (0, 2), seed
        if outcome.status == 0:
            assert outcome.stdout == expected, seed
        else:
            assert (outcome.stdout, outcome.stderr.count("\n")) == ("", 1), seed


@pytest.mark.parametrize("name", ["summary.json", "evaluation.json", "run.json", "corpus.json"])
@pytest.mark.parametrize("content", [b'{"a": "\xff"}', b"null"], ids=["not UTF-8", "null"])
def test_a_small_file_that_is_no_object_is_named(
    refused: Refused, corpus: Path, trained: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(corpus if name == "corpus.json" else trained, copy)
    (copy / name).write_bytes(content)
    told = refused("info", copy)
    assert name in told
    assert "damaged" in told
