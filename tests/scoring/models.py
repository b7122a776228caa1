"""Models of words without a run on the disk: a network with words, or several models as a mixture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from small_corpus import SPECIALS, VOCAB_SIZE

from bnce import Model, Normaliser
from bnce.corpus.vocabulary import Vocabulary
from bnce.scoring.mixture import MixtureModel
from bnce.scoring.run_model import RunModel

WORDS = [*SPECIALS, *(f"w{number}" for number in range(2, VOCAB_SIZE))]
# What a decoder's lexicon has: real words, whose parts are spelt.
HEARD = [*SPECIALS, "hello", "help", "world", *(f"w{number}" for number in range(5, VOCAB_SIZE))]


def run_model(
    network: Any, words: Sequence[str] = WORDS, normaliser: Normaliser | None = None, **more: Any
) -> RunModel:
    """Give a network as the model of a run."""
    return RunModel(network, Vocabulary(words), normaliser or Normaliser(True, "whitespace", "split"), **more)


def mixture(components: Sequence[Model], weights: Sequence[float]) -> MixtureModel:
    """Mix models word by word."""
    return MixtureModel(components, weights)
