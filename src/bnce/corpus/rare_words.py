"""The words that a spelling model learns from: those that `<unk>` stands for in the training text."""

from __future__ import annotations

import numpy as np

from bnce.corpus.tally import Tally
from bnce.corpus.vocabulary import Vocabulary
from bnce.spelling.model import SpellingModel

# The most frequent ones. So many take three seconds and 20 MB; with V = 80,000, unknown tokens of Wikipedia then take
# 23.0 bits, where 100,000 types give 26.0 and all 710,000 give 22.5.
MAX_TYPES = 500_000
# Where fewer are outside, the rarest words of the vocabulary stand in for them, each once: they are spelt alike.
MIN_TYPES = 1_000


def train_spelling(tally: Tally, vocabulary: Vocabulary) -> SpellingModel:
    """Train a spelling model on the words outside a vocabulary, each as often as the text has it."""
    words, counts = tally.most_frequent_outside(vocabulary.words, MAX_TYPES)
    if len(words) < MIN_TYPES:
        rarest = tally.rarest_inside(vocabulary.words, MIN_TYPES - len(words))
        words, counts = [*words, *rarest], np.append(counts, np.ones(len(rarest), dtype=np.int64))
    return SpellingModel.train(words, counts).leaving_out(vocabulary.words)
