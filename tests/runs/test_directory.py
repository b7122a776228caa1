"""A run on disk: written whole, read back equal, and refused in one sentence when it is damaged."""

from __future__ import annotations

import errno
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_corpus import random_ids, small_config, write_corpus

from bnce import Corpus, UserError
from bnce.corpus.vocabulary import Vocabulary
from bnce.errors import DiskFullError
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import build_model, load_model, save_weights
from bnce.runs.resuming import is_begun
from bnce.spelling.model import SPELLING_FILE, SpellingModel


def test_opens_as_it_was_created(run: RunDirectory, corpus: Corpus) -> None:
    opened = RunDirectory.open(run.path)
    assert opened.config == run.config == small_config(corpus)
    assert opened.vocabulary == corpus.vocabulary
    assert opened.normaliser == corpus.normaliser
    assert opened.target_counts.tolist() == run.target_counts.tolist()
    assert opened.owner == run.owner


def test_two_runs_share_nothing_but_their_settings(tmp_path: Path, run: RunDirectory, corpus: Corpus) -> None:
    again = RunDirectory.create(tmp_path / "again", run.config, corpus)
    assert again.owner == run.owner
    other = RunDirectory.create(tmp_path / "other", small_config(corpus, training={"seed": 2}), corpus)
    assert other.owner != run.owner
    words = write_corpus(tmp_path / "words", {"train": random_ids(100, 29), "valid": random_ids(9, 29)}, 29)
    elsewhere = RunDirectory.create(tmp_path / "elsewhere", run.config, words)
    assert elsewhere.owner != run.owner


def test_does_not_write_over_anything(run: RunDirectory, corpus: Corpus) -> None:
    before = (run.path / "config.toml").read_bytes()
    with pytest.raises(UserError, match="already exists: give another path"):
        RunDirectory.create(run.path, small_config(corpus, training={"seed": 2}), corpus)
    assert (run.path / "config.toml").read_bytes() == before


def test_appears_whole_or_not_at_all(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **keywords: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(UserError, match="The disk is full"):
        RunDirectory.create(tmp_path / "place" / "run", small_config(corpus), corpus)
    assert list((tmp_path / "place").iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_is_full_at_the_counts(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    write, save = Vocabulary.write, np.save

    def write_before_a_full_disk(vocabulary: Vocabulary, path: Path) -> None:
        write(vocabulary, path)
        path.with_name("counts.npy").symlink_to("/dev/full")

    def fall_short(file: object, *arguments: Any, **keywords: Any) -> None:
        # What NumPy says when a part still fits: there is no number of an error in it.
        if not isinstance(file, io.BytesIO):
            raise OSError("3002 requested and 1520 written")
        save(file, *arguments, **keywords)

    monkeypatch.setattr(Vocabulary, "write", write_before_a_full_disk)
    monkeypatch.setattr(np, "save", fall_short)
    with pytest.raises(UserError, match="The disk is full"):
        RunDirectory.create(tmp_path / "place" / "run", small_config(corpus), corpus)
    assert list((tmp_path / "place").iterdir()) == []


def test_a_disk_that_is_full_at_a_copy(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(source: Path, target: Path) -> None:
        # As shutil has it: the file that is read comes first.
        raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))

    monkeypatch.setattr("bnce.runs.directory.shutil.copyfile", copy)
    run = tmp_path / "place" / "run"
    with pytest.raises(DiskFullError, match=rf"The disk is full: '{run}' could not be written and was not changed"):
        RunDirectory.create(run, small_config(corpus), corpus)
    assert list((tmp_path / "place").iterdir()) == []


def test_a_run_takes_the_spelling_model_of_its_corpus(tmp_path: Path, run: RunDirectory, corpus: Corpus) -> None:
    assert corpus.spelling_file is not None
    expected = corpus.spelling_file.read_bytes()
    assert (run.path / SPELLING_FILE).read_bytes() == expected
    assert not is_begun(run.path)
    (tmp_path / "copy").mkdir()
    run.copy_description(tmp_path / "copy")
    assert (tmp_path / "copy" / SPELLING_FILE).read_bytes() == expected
    save_weights(run, build_model(run).state_dict(), 1)
    load_model(run)
    SpellingModel.train(["other"]).write(run.path / SPELLING_FILE)
    with pytest.raises(UserError, match=r"is damaged: spelling\.safetensors changed after model\.safetensors was"):
        load_model(run)
    SpellingModel.train(["other"]).write(corpus.directory / SPELLING_FILE)
    with pytest.raises(UserError, match=r"spelling\.safetensors has changed since it was written"):
        RunDirectory.create(tmp_path / "other", run.config, corpus)
    assert not (tmp_path / "other").exists()


def test_a_corpus_without_a_spelling_model_trains(tmp_path: Path, run: RunDirectory, corpus: Corpus) -> None:
    old = Corpus(corpus.directory, corpus.vocabulary, replace(corpus.manifest, spelling_hash=None))
    made = RunDirectory.create(tmp_path / "old", run.config, old)
    assert not (made.path / SPELLING_FILE).exists()
    save_weights(made, build_model(made).state_dict(), 1)
    load_model(made)


@pytest.mark.parametrize(
    "counts", [np.int64(3), np.full((30, 2), 1), np.full(30, "x"), np.full(30, 0.5), np.full(30, -1)]
)
def test_counts_that_are_none(run: RunDirectory, counts: np.ndarray) -> None:
    np.save(run.path / "counts.npy", counts)
    with pytest.raises(
        UserError,
        match=r"is incomplete or damaged: counts.npy cannot be read \((it is not a list of counts|.*cut short)",
    ):
        RunDirectory.open(run.path)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a run directory: it has no config.toml"):
        RunDirectory.open(tmp_path)
    with pytest.raises(UserError, match=r"missing' does not exist: check the path\.$"):
        RunDirectory.open(tmp_path / "missing")
    (tmp_path / "corpus.json").touch()
    with pytest.raises(UserError, match=r"is a corpus, not a run: give a directory from 'bnce train'\.$"):
        RunDirectory.open(tmp_path)


def test_a_corpus_with_other_words_is_refused(tmp_path: Path, run: RunDirectory, corpus: Corpus) -> None:
    run.check_vocabulary(corpus)
    other = write_corpus(tmp_path / "other", {"train": random_ids(100, 29), "valid": random_ids(9, 29)}, 29)
    with pytest.raises(UserError, match=r"\(29 words\).*\(30 words\): prepare it with vocabulary_file='.*vocab\.txt"):
        run.check_vocabulary(other)
