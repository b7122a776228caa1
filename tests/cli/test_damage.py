"""Damaged files the user's way: every command that reads one refuses it in one sentence, with status 2."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import damaged

from .conftest import settings


@pytest.mark.parametrize("command", ["train", "evaluate", "info"])
def test_a_damaged_training_text_is_refused(
    refused: Callable[..., str], corpus: Path, trained: Path, place: Path, tmp_path: Path, command: str
) -> None:
    copy = tmp_path / "corpus"
    shutil.copytree(corpus, copy)
    content = (corpus / "train.npy").read_bytes()
    options = {
        "train": ["train", "wiki", "--corpus", copy, "--out", place / "run", "--device", "cpu", *settings()],
        "evaluate": ["evaluate", trained, "--corpus", copy, "--split", "train", "--device", "cpu"],
        "info": ["info", copy],
    }
    for seed in range(16):
        (copy / "train.npy").write_bytes(changed := damaged(content, seed))
        if changed != content:
            assert f"The corpus '{copy}' is damaged: train.npy" in refused(*options[command]), seed
    assert not list(place.iterdir())
