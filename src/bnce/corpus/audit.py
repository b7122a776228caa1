"""Whether a batch's targets are the noise that B-NCE takes them for: a sample of the unigram, at every time step.

The distance is KL(targets of one step ‖ unigram) in nats. Even a fair sample of B words is far from the unigram of a
large vocabulary, so that the figure says nothing by itself: beside it stands what samples of the same sizes, drawn
by chance, give. Streams read side by side should match it. Sentences side by side do not: none ends at its first step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.store import Ids
from bnce.corpus.streams import Streams
from bnce.corpus.vocabulary import END

_SEED = 1  # the same figures every time
_NUM_STREAM_STEPS = 128
_NUM_SENTENCE_BATCHES = 8
_NUM_SENTENCE_STEPS = 16
_NUM_DRAWS = 8
# Chance alone passes the first bound once in 30,000 audits; the second forgives what is real but too small to matter.
_MAX_ERRORS = 4.0
_MAX_SHARE = 0.02

Words = NDArray[np.int64]


@dataclass(frozen=True)
class Divergence:
    """The mean KL divergence of a batching's time steps, in nats, and that of as many samples drawn by chance."""

    kl: float
    kl_by_chance: float
    standard_error: float
    num_steps: int

    @property
    def is_unigram(self) -> bool:
        """Tell whether the targets can be taken for unigram noise."""
        return self.kl - self.kl_by_chance <= max(_MAX_ERRORS * self.standard_error, _MAX_SHARE * self.kl_by_chance)


def audit_streams(ids: Ids, counts: NDArray[np.int64], batch_size: int) -> Divergence:
    """Measure the batches that training reads: the same word of every parallel stream."""
    generator = np.random.default_rng(_SEED)
    streams = Streams(ids, batch_size, num_steps=1)
    # By chance, since a regular choice could keep step with sentences of a regular length.
    steps = generator.choice(len(streams), size=min(_NUM_STREAM_STEPS, len(streams)), replace=False)
    return _compare((streams.chunk(int(step)).target_TB.numpy()[0] for step in steps), counts, generator)


def audit_sentences(ids: Ids, counts: NDArray[np.int64], batch_size: int) -> Divergence:
    """Measure batches of sentences that all begin at the first step, for comparison."""
    generator = np.random.default_rng(_SEED)
    return _compare(_sentence_steps(ids, counts, batch_size, generator), counts, generator)


def _sentence_steps(
    ids: Ids, counts: NDArray[np.int64], batch_size: int, generator: np.random.Generator
) -> Iterator[Words]:
    """Yield the words of each step of some batches; sentences that have ended are no longer among them."""
    # Twice what as many average sentences take; it is read in one piece wherever in the text it lies.
    num_tokens = int(2 * (batch_size + 1) * counts.sum() / max(1, counts[END]))
    for _ in range(_NUM_SENTENCE_BATCHES):
        place = int(generator.integers(max(1, len(ids) - num_tokens)))
        piece = np.asarray(ids[place : place + num_tokens])
        end_at = np.flatnonzero(piece == END)[: batch_size + 1]
        begin, end = end_at[:-1] + 1, end_at[1:]
        for step in range(_NUM_SENTENCE_STEPS):
            at = (begin + step)[begin + step <= end]
            # A handful of long sentences would say more about itself than about the batching.
            if len(at) > batch_size // 4:
                yield piece[at].astype(np.int64)


def _compare(steps: Iterator[Words], counts: NDArray[np.int64], generator: np.random.Generator) -> Divergence:
    probability = counts / counts.sum()
    cumulative = np.cumsum(probability)
    found, by_chance = [], []
    for words in steps:
        found.append(divergence(words, probability))
        draws = generator.random((_NUM_DRAWS, len(words))) * cumulative[-1]
        by_chance.append([divergence(drawn, probability) for drawn in np.searchsorted(cumulative, draws, side="right")])
    if not found:
        return Divergence(float("nan"), float("nan"), float("nan"), 0)
    # Within steps: samples of different sizes differ by that alone.
    variance = np.var(by_chance, axis=1, ddof=1).mean()
    return Divergence(
        kl=float(np.mean(found)),
        kl_by_chance=float(np.mean(by_chance)),
        standard_error=float(np.sqrt(variance * (1 + 1 / _NUM_DRAWS) / len(found))),
        num_steps=len(found),
    )


def divergence(words: Words, probability: NDArray[np.float64]) -> float:
    """Measure KL(words ‖ probability) in nats."""
    values, counts = np.unique(words, return_counts=True)
    share = counts / len(words)
    return float(np.sum(share * (np.log(share) - np.log(probability[values]))))
