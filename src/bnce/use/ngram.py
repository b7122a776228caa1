"""An n-gram model, ARPA or KenLM binary, read by the `kenlm` package and scored as a run is. Logarithms are natural."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bnce.corpus.normalise import Normaliser
from bnce.errors import UserError
from bnce.use.component import Component, Words, WordScores

# By itself an n-gram model does not say how its text was cut: it takes words as they stand.
AS_IT_STANDS = Normaliser(lowercase=False, tokens="whitespace", sentences="lines")


class Ngram(Component):
    """A model that KenLM has loaded."""

    normaliser = AS_IT_STANDS

    def __init__(self, model: Any, name: str) -> None:
        self.model, self.name = model, name

    def score(self, sentences: Sequence[Words], share_prefixes: bool = False) -> list[WordScores]:
        """Score sentences whole: KenLM's words cost so little that sharing prefixes would gain nothing."""
        found = []
        for words in sentences:
            scores = list(self.model.full_scores(" ".join(words), bos=True, eos=True))
            log10_probs, lengths, oov = zip(*scores, strict=True)
            found.append(WordScores(np.array(log10_probs) * math.log(10), np.array(oov, dtype=np.bool_), list(lengths)))
        return found


def open_ngram(path: Path) -> Ngram:
    """Load an n-gram model; the file's content says whether it is ARPA or binary."""
    try:
        import kenlm
    except ImportError as error:
        raise UserError("N-gram models are read by the package 'kenlm': run pip install 'bnce[ngram]'.") from error
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    try:
        return Ngram(kenlm.Model(str(path), config), str(path))
    except (OSError, RuntimeError, UnicodeError) as error:
        # KenLM names its own source file and function first, and then what is wrong.
        reason = str(error).strip().splitlines()[-1].rpartition("Exception")[2].lstrip(". ").rstrip(").\n")
        raise UserError(
            f"'{path}' is no n-gram model that KenLM can read ({reason}): give an ARPA file or a KenLM binary."
        ) from error
