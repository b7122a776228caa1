"""Which words make a vocabulary: the most frequent ones, and never so many that `<unk>` has nothing to learn from.

A vocabulary of every training word leaves no unknown word in the training text. A model of it gives `<unk>` next to
nothing, 14 nats each, though other text has some: that costs more perplexity than a smaller vocabulary does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bnce.corpus.manifest import SplitStatistics
from bnce.corpus.spelling import SpellingModel
from bnce.corpus.tally import Ranking, Tally
from bnce.corpus.vocabulary import Vocabulary
from bnce.errors import UserError, argument
from bnce.text.normalise import UNKNOWN_WORD

# Words that occur less often are left out where <unk> would not be trained otherwise; OBWB leaves out those below 3.
MIN_COUNT_FOR_UNKNOWN = 2
# Words that a spelling model learns from, the most frequent ones. So many take three seconds and 20 MB; with
# V = 80,000, unknown tokens of Wikipedia then take 23.0 bits, where 100,000 types give 26.0 and all 710,000 give 22.5.
MAX_TYPES = 500_000
# Where fewer are outside, the rarest words of the vocabulary stand in for them, each once: they are spelt alike.
MIN_TYPES = 1_000


def choose_words(tally: Tally, max_words: int | None, min_count: int | None, num_unknown: int) -> tuple[Ranking, int]:
    """Choose words, and say how often they occur at least: as given, else once, or twice to have `<unk>` trained.

    `num_unknown` counts the unknown words that the training text spells itself.
    """
    ranking = tally.most_frequent(max_words, min_count or 1)
    if not ranking.words:
        raise UserError(f"No word occurs at least {min_count or 1} times: lower the minimum count.")
    if min_count is None and len(ranking.words) == ranking.num_types and not num_unknown:
        frequent = tally.most_frequent(max_words, MIN_COUNT_FOR_UNKNOWN)
        if 0 < len(frequent.words) < len(ranking.words):
            return frequent, MIN_COUNT_FOR_UNKNOWN
    return ranking, min_count or 1


def describe_untrained(statistics: Mapping[str, SplitStatistics]) -> str | None:
    """Say that `<unk>` has no target to learn from, where that matters, and how often it comes up elsewhere."""
    rates = [f"{split.unk_rate:.2%} of the words of {name}" for name, split in statistics.items() if split.num_oov]
    if statistics["train"].num_oov or not rates:
        return None
    return (
        f"The training text has no {UNKNOWN_WORD}, because the vocabulary has all of its words: a model learns to give "
        f"unknown words next to no probability. They are {' and '.join(rates)}. Leave rare words out of the vocabulary "
        f"with {argument('min_count')} or {argument('vocab_size')}."
    )


def train_spelling(tally: Tally, vocabulary: Vocabulary) -> SpellingModel:
    """Train a spelling model on the words outside a vocabulary, each as often as the text has it."""
    words, counts = tally.most_frequent_outside(vocabulary.words, MAX_TYPES)
    if len(words) < MIN_TYPES:
        rarest = tally.rarest_inside(vocabulary.words, MIN_TYPES - len(words))
        words, counts = [*words, *rarest], np.append(counts, np.ones(len(rarest), dtype=np.int64))
    return SpellingModel.train(words, counts).leaving_out(vocabulary.words)
