"""One small model of every kind, all of which read text as English is: words and marks, sentences to be found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from small_corpus import SPECIALS, VOCAB_SIZE, random_ids, small_model

from bnce import Model, Normaliser
from bnce.corpus.vocabulary import Vocabulary
from bnce.kinds import bodies
from bnce.ngrams.arpa import write_arpa
from bnce.ngrams.kneser_ney import estimate
from bnce.scoring.mixture import MixtureModel
from bnce.scoring.ngram import open_ngram
from bnce.scoring.run_model import RunModel
from bnce.spelling.model import SpellingModel

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [*SPECIALS, ".", ",", "'", "england", "?", *LETTERS[: VOCAB_SIZE - 7]]
ENGLISH = Normaliser()
BODIES = bodies.BODIES.names
KINDS = [*BODIES, "n-gram", "mixture"]


def make_run(body: str = "lstm", loss: str = "bnce", words: list[str] = WORDS, name: str = "run") -> RunModel:
    """Make a run of random weights that knows single letters, England and a few marks."""
    spelling = SpellingModel.train(["zebra", "yak", "gnu"]).leaving_out(words)
    counts = np.arange(len(words))[::-1].copy()
    network = small_model(body, loss, vocab_size=len(words), order=4, num_layers=0, num_heads=2)
    return RunModel(network, Vocabulary(words), ENGLISH, None, name, spelling, counts)


def make_model(kind: str, directory: Path) -> Model:
    """Make a model of a kind: the name of a body, or one of the others."""
    if kind == "n-gram":
        path = directory / "bigram.arpa"
        write_arpa(path, WORDS, estimate(random_ids(2000), VOCAB_SIZE, 2))
        ngram = open_ngram(path)
        ngram.normaliser = ENGLISH
        return ngram
    if kind == "mixture":
        return MixtureModel([make_run("lstm"), make_model("n-gram", directory)], [0.6, 0.4])
    return make_run(kind)
