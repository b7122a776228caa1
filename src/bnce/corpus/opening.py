"""A corpus by the name that settings give it: a directory, or the docstrings, which are prepared when first wanted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from bnce import files
from bnce.corpus.store import Corpus
from bnce.machine.threads import num_cores
from bnce.text.sources import DOCSTRINGS
from bnce.version import __version__

DOCSTRING_WORDS = 30_000  # nearly all of them


def open_corpus(name: str, progress: Callable[[int, int], None] | None = None) -> Corpus:
    """Open a corpus directory, or the docstrings, which are prepared once for every version of what they come from."""
    if name != DOCSTRINGS:
        return Corpus.open(name)
    versions = f"torch-{torch.__version__}-numpy-{np.__version__}-bnce-{__version__}-{DOCSTRING_WORDS}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bnce" / f"docstrings-{versions}"
    if not cache.exists():
        if progress is not None:
            progress(0, 0)  # to show that something is going on: another process may be at it
        with files.one_maker(cache):
            if not cache.exists():
                from bnce.corpus.prepare import prepare  # all of which loads slowly, and is hardly ever needed

                # With every word, since published figures are of this vocabulary.
                size, workers = DOCSTRING_WORDS, num_cores()
                prepare([DOCSTRINGS], cache, vocab_size=size, min_count=1, num_workers=workers, progress=progress)
    return Corpus.open(cache)


def corpus_setting(name: str) -> str:
    """Write a corpus the way a run's config keeps it: the docstrings by their name, a directory by its whole path."""
    return name if name == DOCSTRINGS else os.path.realpath(name)
