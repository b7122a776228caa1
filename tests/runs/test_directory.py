"""A run on disk: written whole, read back equal, and refused in one sentence when it is damaged."""

from __future__ import annotations

import errno
import io
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command
from small_corpus import random_ids, small_corpus, small_run, write_corpus
from small_training import RECIPE, train_small

from bnce import Corpus, UserError, evaluate, load

SPELLING_FILE = "spelling.safetensors"
SHORT = {"epochs": 0.1}


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return small_corpus(tmp_path / "corpus")


def test_it_has_the_settings_the_words_and_their_counts(place: Path, corpus: Corpus) -> None:
    run = place / "run"
    train_small(run, corpus, training=SHORT)
    settings, wanted = (tomllib.loads(path.read_text(encoding="utf-8")) for path in (run / "config.toml", RECIPE))
    wanted["training"] |= SHORT
    del wanted["model"]["order"]  # of other models
    for table, values in wanted.items():
        assert settings[table].items() >= values.items()
    assert (settings["recipe"], settings["corpus"]) == ("small", str(corpus.directory))
    assert (run / "vocab.txt").read_text(encoding="utf-8").splitlines() == list(corpus.vocabulary.words)
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert record["normaliser"] == corpus.normaliser.to_dict()
    assert record["network"] == settings["model"]
    assert list(record["files"]) == ["vocab.txt", "counts.npy", SPELLING_FILE]
    assert np.load(run / "counts.npy").sum() == 2000, "2,003 tokens in 8 streams"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_is_full_at_the_counts(place: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = type(corpus.vocabulary)
    write, save = vocabulary.write, np.save

    def write_before_a_full_disk(words: Any, path: Path) -> None:
        write(words, path)
        path.with_name("counts.npy").symlink_to("/dev/full")

    def fall_short(file: object, *arguments: Any, **keywords: Any) -> None:
        # What NumPy says when a part still fits: there is no number of an error in it.
        if not isinstance(file, io.BytesIO):
            raise OSError("3002 requested and 1520 written")
        save(file, *arguments, **keywords)

    monkeypatch.setattr(vocabulary, "write", write_before_a_full_disk)
    monkeypatch.setattr(np, "save", fall_short)
    with pytest.raises(UserError, match="The disk is full"):
        train_small(place / "run", corpus)
    assert list(place.iterdir()) == []


def test_a_disk_that_is_full_at_a_copy(place: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(source: Path, target: Path) -> None:
        # As shutil has it: the file that is read comes first.
        raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))

    monkeypatch.setattr(shutil, "copyfile", copy)
    run = place / "run"
    with pytest.raises(UserError, match=rf"The disk is full: '{run}' could not be written and was not changed"):
        train_small(run, corpus)
    assert list(place.iterdir()) == []


def test_a_run_takes_the_spelling_model_of_its_corpus(
    bnce: Command, place: Path, tmp_path: Path, corpus: Corpus
) -> None:
    run, other = place / "run", small_run(tmp_path / "other", spelt=("other",)) / SPELLING_FILE
    train_small(run, corpus, training=SHORT)
    expected = (corpus.directory / SPELLING_FILE).read_bytes()
    assert (run / SPELLING_FILE).read_bytes() == expected
    bnce("export", run, "--to", "safetensors", "--out", place / "copy")
    assert (place / "copy" / SPELLING_FILE).read_bytes() == expected
    load(run)
    shutil.copyfile(other, run / SPELLING_FILE)
    with pytest.raises(UserError, match=r"another version: spelling\.safetensors has .* restore its files, or train"):
        load(run)
    shutil.copyfile(other, corpus.directory / SPELLING_FILE)
    with pytest.raises(UserError, match=r"spelling\.safetensors has changed since it was written"):
        train_small(place / "other", corpus)
    assert not (place / "other").exists()


def test_a_corpus_without_a_spelling_model_trains(place: Path, tmp_path: Path) -> None:
    old = write_corpus(tmp_path / "old", {"train": random_ids(500), "valid": random_ids(50)}, spells=False)
    train_small(place / "old", old, training=SHORT)
    assert not (place / "old" / SPELLING_FILE).exists()
    load(place / "old")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a run directory: it has no config.toml"):
        evaluate(tmp_path)
    with pytest.raises(UserError, match=r"missing' does not exist: check the path\.$"):
        evaluate(tmp_path / "missing")


def test_a_corpus_with_other_words_is_refused(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    other = write_corpus(tmp_path / "other", {"train": random_ids(100, 29), "valid": random_ids(9, 29)}, 29)
    with pytest.raises(UserError, match=r"\(29 words\).*\(30 words\): prepare it with vocabulary_file='.*vocab\.txt"):
        evaluate(run, corpus=other, split="valid")
