"""Models of words without a run on the disk: a network with words, several models as a mixture, fixed probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from small_corpus import SPECIALS, VOCAB_SIZE

from bnce import Model, Normaliser
from bnce.corpus.cutter import Tokens
from bnce.corpus.spelling import SpellingModel
from bnce.corpus.vocabulary import Vocabulary
from bnce.engine.network import Mode, Network
from bnce.engine.torch_network import TorchNetwork
from bnce.scoring.mixture import MixtureModel
from bnce.scoring.results import WordScores
from bnce.scoring.run_model import RunModel

MODES: tuple[Mode, ...] = ("unnormalised", "normalised")
WORDS = [*SPECIALS, *(f"w{number}" for number in range(2, VOCAB_SIZE))]
AS_IT_STANDS = Normaliser(lowercase=False, tokens="whitespace", sentences="lines")
# What a decoder's lexicon has: real words, whose parts are spelt.
HEARD = [*SPECIALS, "hello", "help", "world", *(f"w{number}" for number in range(5, VOCAB_SIZE))]


def run_model(
    network: Any, words: Sequence[str] = WORDS, normaliser: Normaliser | None = None, **more: Any
) -> RunModel:
    """Give a network as the model of a run."""
    network = network if isinstance(network, Network) else TorchNetwork(network)
    return RunModel(network, Vocabulary(words), normaliser or Normaliser(True, "whitespace", "split"), **more)


def mixture(components: Sequence[Model], weights: Sequence[float]) -> MixtureModel:
    """Mix models word by word."""
    return MixtureModel(components, weights)


def spelling_model(learnt: Sequence[str], words: Sequence[str] = WORDS) -> SpellingModel:
    """Learn how words are spelt that are not in a vocabulary."""
    return SpellingModel.train(learnt).leaving_out(words)


class Unigram(Model):
    """A model of fixed probabilities, as anybody may write one; words without one are unknown and get the rest."""

    kind = "unigram"

    def __init__(self, probs: dict[str, float], normaliser: Normaliser = AS_IT_STANDS, name: str = "unigram") -> None:
        self.probs, self.normaliser, self.name = probs, normaliser, name

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary([*SPECIALS, *(word for word in self.probs if word not in SPECIALS)])

    def log_probs(self, text: Tokens, *, after: Any = None, keep_states: bool = False, **how: Any) -> WordScores:
        oov_N = np.array([word not in self.probs for word in text.words], dtype=bool)
        states = [None] * len(text) if keep_states else None
        ones_N = np.ones(len(oov_N), dtype=np.int64)
        return WordScores(
            text.encoded(self.vocabulary), self._log_probs(text.words), oov_N, ones_N, "normalised", states
        )

    def advance_all(self, states: Sequence[Any], text: Tokens) -> list[Any]:
        return list(states)

    def distribution(self, state: Any, *, mode: Any = None) -> np.ndarray:
        return self._log_probs(self.vocabulary.words)

    def _log_probs(self, words: Sequence[str]) -> np.ndarray:
        rest = 1 - sum(self.probs.values())
        with np.errstate(divide="ignore"):
            return np.log([self.probs.get(word, rest) for word in words])


ONE = Unigram({"</s>": 0.25, "a": 0.5, "b": 0.125})
OTHER = Unigram({"</s>": 0.25, "a": 0.25, "c": 0.25})
