"""The smallest model there is: fixed probabilities, whatever came before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from small_corpus import SPECIALS

from bnce import Model, Normaliser
from bnce.corpus.vocabulary import Vocabulary
from bnce.ngrams.arpa import AS_IT_STANDS
from bnce.scoring.model import State, Words
from bnce.scoring.scored import Floats, WordScores


class Unigram(Model):
    """A model of fixed probabilities; words without one are unknown and get the rest."""

    kind = "unigram"

    def __init__(self, probs: dict[str, float], normaliser: Normaliser = AS_IT_STANDS, name: str = "unigram") -> None:
        self.probs, self.normaliser, self.name = probs, normaliser, name

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary([*SPECIALS, *(word for word in self.probs if word not in SPECIALS)])

    def score_words(
        self,
        sentences: Sequence[Words],
        *,
        normalised: bool = False,
        share_prefixes: bool = False,
        after: Sequence[State] | None = None,
        spell: bool = False,
    ) -> list[WordScores]:
        found = []
        for words in sentences:
            oov = np.array([word not in self.probs for word in [*words, "</s>"]])
            found.append(WordScores(self.next_log_probs(None, [*words, "</s>"]), oov, [1] * len(oov)))
        return found

    def start(self) -> State:
        return None

    def advance(self, state: State, word: str) -> State:
        return None

    def next_log_probs(self, state: State, words: Words, *, normalised: bool = False) -> Floats:
        rest = 1 - sum(self.probs.values())
        with np.errstate(divide="ignore"):
            log_probs: Floats = np.log([self.probs.get(word, rest) for word in words])
        return log_probs


ONE = Unigram({"</s>": 0.25, "a": 0.5, "b": 0.125})
OTHER = Unigram({"</s>": 0.25, "a": 0.25, "c": 0.25})
