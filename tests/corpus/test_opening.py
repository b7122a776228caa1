"""A corpus by its name: docstrings are prepared once, whoever asks, and directories are opened where they are."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from small_corpus import small_corpus

from bnce import Corpus, UserError, files
from bnce.corpus import opening
from bnce.corpus.opening import corpus_setting, open_corpus
from bnce.text.sources import DOCSTRINGS


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return small_corpus(tmp_path / "corpus")


def test_docstrings_are_prepared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def prepare(sources: list[str], out: Path, **keywords: Any) -> Corpus:
        calls.append((sources, keywords["vocab_size"]))
        return small_corpus(out)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("bnce.corpus.prepare.prepare", prepare)
    first, second = open_corpus(DOCSTRINGS), open_corpus(DOCSTRINGS)
    assert calls == [([DOCSTRINGS], opening.DOCSTRING_WORDS)]
    assert first.directory == second.directory
    assert first.directory.is_relative_to(tmp_path / "cache" / "bnce")
    assert torch.__version__ in first.directory.name


def test_two_that_need_the_docstrings_at_once_share_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first, who may as well be another process: a lock is one of the open file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    makers, second_came, opened = [], threading.Event(), []
    second = threading.Thread(target=lambda: opened.append(open_corpus(DOCSTRINGS)))

    def make(sources: list[str], out: Path, **options: Any) -> None:
        makers.append(threading.current_thread())
        if len(makers) > 1:
            second_came.set()
        else:
            second.start()
            second_came.wait(timeout=0.3)
        files.refuse_existing(out)
        small_corpus(out)

    monkeypatch.setattr("bnce.corpus.prepare.prepare", make)
    opened.append(open_corpus(DOCSTRINGS, lambda done, total: None))
    second.join(timeout=60)
    assert len(makers) == 1
    assert [corpus.directory for corpus in opened] == [opened[0].directory] * 2


def test_other_corpora_are_opened_where_they_are(corpus: Corpus, tmp_path: Path) -> None:
    assert open_corpus(str(corpus.directory)).directory == corpus.directory
    with pytest.raises(UserError, match="missing' does not exist: check the path, or make a corpus"):
        open_corpus(str(tmp_path / "missing"))
    with pytest.raises(UserError, match="is not a corpus"):
        open_corpus(str(tmp_path))


def test_a_corpus_is_kept_by_its_whole_path_and_the_docstrings_by_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert corpus_setting("somewhere") == str(tmp_path / "somewhere")
    assert corpus_setting(DOCSTRINGS) == DOCSTRINGS
