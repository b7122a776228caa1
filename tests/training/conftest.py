"""What most tests of training share: the corpus that they train on."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_corpus import small_corpus

from bnce import Corpus


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return small_corpus(tmp_path / "corpus")
