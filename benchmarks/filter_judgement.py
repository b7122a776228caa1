"""Documents and their spoilt copies, and how well perplexities tell them apart, with intervals.

Areas under the ROC curve are for two lots of documents: the share of pairs, one of each lot, in which the good one has
the lower perplexity. Shares of pairs are for documents against their own spoilt copies. Intervals are 95%, by drawing
documents anew, with replacement.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import Vocabulary
from bnce.text.normalise import Normaliser

NUM_SENTENCES = 10
NUM_SWAPPED = 2
REPLACED_SHARE = 0.05
LIKE_RANK = 0.2  # a word of like frequency: its rank is at most this share higher or lower, or a few places
NUM_DRAWS = 1000

Passage = list[list[str]]  # sentences of words


def make_passages(documents: Sequence[Sequence[str]], normaliser: Normaliser, number: int, seed: int) -> list[Passage]:
    """Take ten sentences in a row from each of so many documents that have them; a sentence has five words or more."""
    draw = random.Random(seed)
    found = []
    for lines in draw.sample(list(documents), len(documents)):
        sentences = [words for line in lines for words in normaliser(line) if len(words) >= 5]
        if len(sentences) >= NUM_SENTENCES:
            first = draw.randrange(len(sentences) - NUM_SENTENCES + 1)
            found.append(sentences[first : first + NUM_SENTENCES])
        if len(found) == number:
            break
    return found


def replace_words(passage: Passage, vocabulary: Vocabulary, draw: random.Random) -> Passage:
    """Replace one word in twenty by a random word of like frequency; ids are in the order of frequency."""
    spoilt = [list(sentence) for sentence in passage]
    places = [(row, column) for row, sentence in enumerate(passage) for column in range(len(sentence))]
    ids = vocabulary.encode([passage[row][column] for row, column in places])
    known = [place for place, number in zip(places, ids.tolist(), strict=True) if number > 1]
    for row, column in draw.sample(known, min(len(known), max(1, round(REPLACED_SHARE * len(places))))):
        rank = int(vocabulary.encode([passage[row][column]])[0])
        reach = max(5, round(LIKE_RANK * rank))
        near = [n for n in range(max(2, rank - reach), min(len(vocabulary), rank + reach + 1)) if n != rank]
        spoilt[row][column] = vocabulary.words[draw.choice(near)]
    return spoilt


def swap_sentences(passages: Sequence[Passage], draw: random.Random) -> list[Passage]:
    """Put two sentences of another passage in the place of two of each one's own."""
    spoilt = []
    for place, passage in enumerate(passages):
        other = passages[(place + draw.randrange(1, len(passages))) % len(passages)]
        changed = [list(sentence) for sentence in passage]
        for row in draw.sample(range(NUM_SENTENCES), NUM_SWAPPED):
            changed[row] = list(other[row])
        spoilt.append(changed)
    return spoilt


def shuffle_sentences(passage: Passage, draw: random.Random) -> Passage:
    """Put the sentences of a passage in another order."""
    while (mixed := draw.sample(passage, len(passage))) == passage:
        pass
    return mixed


def to_text(passage: Passage) -> str:
    """Write a passage as text that is cut into the same words: one sentence per line."""
    return "\n".join(" ".join(sentence) for sentence in passage)


def roc_area(good_N: NDArray[np.float64], bad_M: NDArray[np.float64]) -> float:
    """Compute the share of pairs in which the good document has the lower perplexity; equals count half."""
    values = np.concatenate([good_N, bad_M])
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[place]
    bad_ranks = rank[len(good_N) :].sum()
    return float((bad_ranks - len(bad_M) * (len(bad_M) + 1) / 2) / (len(good_N) * len(bad_M)))


def pair_share(good_N: NDArray[np.float64], bad_N: NDArray[np.float64]) -> float:
    """Compute the share of documents that have a lower perplexity than their spoilt copies; equals count half."""
    return float((good_N < bad_N).mean() + 0.5 * (good_N == bad_N).mean())


def intervals(
    goods: Sequence[NDArray[np.float64]], bads: Sequence[NDArray[np.float64]], paired: bool, seed: int = 1
) -> tuple[list[tuple[float, float, float]], list[tuple[float, float, float]]]:
    """Give value and interval for each model, and of each model's lead over the last one, on the same draws."""
    measure = pair_share if paired else roc_area
    draw = np.random.default_rng(seed)
    values = [measure(good, bad) for good, bad in zip(goods, bads, strict=True)]
    drawn = []
    for _ in range(NUM_DRAWS):
        good_at = draw.integers(len(goods[0]), size=len(goods[0]))
        bad_at = good_at if paired else draw.integers(len(bads[0]), size=len(bads[0]))
        drawn.append([measure(good[good_at], bad[bad_at]) for good, bad in zip(goods, bads, strict=True)])
    drawn_RM = np.array(drawn)
    low, high = np.percentile(drawn_RM, [2.5, 97.5], axis=0)
    lead_low, lead_high = np.percentile(drawn_RM - drawn_RM[:, -1:], [2.5, 97.5], axis=0)
    found = [(value, float(a), float(b)) for value, a, b in zip(values, low, high, strict=True)]
    leads = [(value - values[-1], float(a), float(b)) for value, a, b in zip(values, lead_low, lead_high, strict=True)]
    return found, leads
