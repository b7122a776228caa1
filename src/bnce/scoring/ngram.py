"""An n-gram model (ARPA or KenLM binary), read by `kenlm` and scored as a run is. Logarithms are natural."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bnce.corpus.vocabulary import SPECIALS, Vocabulary
from bnce.errors import UserError
from bnce.machine.packages import need
from bnce.ngrams.arpa import AS_IT_STANDS, read_words, stored_normaliser
from bnce.scoring.given import word_lists
from bnce.scoring.model import Model, Words
from bnce.scoring.scored import Floats, WordScores
from bnce.text.normalise import Normaliser


class NgramModel(Model):
    """A model that KenLM has loaded; it is normalised by itself, and remembers nothing between sentences."""

    kind = "n-gram"

    def __init__(self, model: Any, name: str, normaliser: Normaliser = AS_IT_STANDS) -> None:
        self.model, self.name, self.normaliser = model, name, normaliser

    def score_words(
        self,
        sentences: Sequence[Words],
        *,
        normalised: bool = False,
        share_prefixes: bool = False,
        after: Sequence[Any] | None = None,
        spell: bool = False,
    ) -> list[WordScores]:
        """Score sentences whole: KenLM's words cost so little that sharing prefixes would gain nothing."""
        if spell:
            self.refuse_spelling()
        return [self.score_sentence(words) for words in word_lists(sentences)]

    def score_sentence(self, words: Words, *, begins: bool = True, ends: bool = True) -> WordScores:
        """Score a sentence; one that does not begin has nothing before it, and one that does not end has no `</s>`."""
        scores = list(self.model.full_scores(" ".join(words), bos=begins, eos=ends))
        log10_probs = np.array([log10_prob for log10_prob, _, _ in scores], dtype=np.float64)
        oov = np.array([is_oov for _, _, is_oov in scores], dtype=np.bool_)
        return WordScores(log10_probs * math.log(10), oov, [length for _, length, _ in scores])

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The words of an ARPA file, as it lists them."""
        return read_words(Path(self.name))

    @property
    def vocab_size(self) -> int | None:
        """How many words there are; None for a KenLM binary, which does not list them."""
        try:
            return len(self.vocabulary)
        except UserError:
            return None

    def ids(self, words: Words) -> list[int]:
        """KenLM does not tell the numbers of words."""
        return [0] * (len(words) + 1)

    def is_known(self, word: str) -> bool:
        """Whether the model lists a word."""
        return word in self.model and word not in SPECIALS

    def start(self) -> Any:
        """Give KenLM's state at the start of a sentence."""
        state = self._new_state()
        self.model.BeginSentenceWrite(state)
        return state

    def start_without_context(self) -> Any:
        """Give KenLM's state where nothing is known of what was before."""
        state = self._new_state()
        self.model.NullContextWrite(state)
        return state

    def ngram_length(self, state: Any, history: Words, word: str) -> int:
        """Give what KenLM says: the longest n-gram that it found."""
        return int(self.model.BaseFullScore(state, word, self._new_state()).ngram_length)

    def advance(self, state: Any, word: str) -> Any:
        """Give the state after one more word."""
        after = self._new_state()
        self.model.BaseScore(state, word, after)
        return after

    def next_log_probs(self, state: Any, words: Words, *, normalised: bool = False) -> Floats:
        """Compute ln p of each of these words."""
        score, after = self.model.BaseScore, self._new_state()
        log10_probs = np.fromiter((score(state, word, after) for word in words), dtype=np.float64, count=len(words))
        return log10_probs * math.log(10)

    @staticmethod
    def _new_state() -> Any:
        import kenlm

        return kenlm.State()


def open_ngram(path: str | Path) -> NgramModel:
    """Load an n-gram model; the file's content says whether it is ARPA or binary."""
    path = Path(path)
    if path.suffix == ".safetensors":
        raise UserError(f"'{path}' is a file of a run: give the directory '{path.parent}'.")
    kenlm = need("kenlm", "An n-gram model")
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    try:
        return NgramModel(kenlm.Model(str(path), config), str(path), stored_normaliser(path))
    except (OSError, RuntimeError, UnicodeError) as error:
        # KenLM names its own source file and function first, and then what is wrong.
        reason = str(error).strip().splitlines()[-1].rpartition("Exception")[2].lstrip(". ").rstrip(").\n")
        raise UserError(
            f"'{path}' is not an n-gram model that KenLM can read ({reason}): give an ARPA file or a KenLM binary."
        ) from error
