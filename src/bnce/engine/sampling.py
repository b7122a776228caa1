"""Text from a network, many texts side by side; and the choice of one word among scores by their probabilities.

Legend: B texts side by side, V vocabulary, K its likeliest words, D hidden.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bnce.corpus.vocabulary import END, UNK
from bnce.engine.network import Floats, Ints, Network
from bnce.engine.states import before_text
from bnce.errors import UserError

# Where the search for the words that make up top-p begins: a trained model seldom spreads over more.
NUCLEUS_WORDS = 1024


@dataclass(frozen=True)
class Sampling:
    """How the next word is chosen, which is never `<unk>`; temperature 0 always takes the most likely word."""

    temperature: float = 1.0
    top_k: int = 0  # 0: all words
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(
                f"The temperature is {self.temperature}: it must be 0 (always take the most likely word) or above."
            )
        if self.top_k < 0:
            raise UserError(f"top-k is {self.top_k}: it must be 0 (all words) or above.")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p is {self.top_p}: it must be above 0 and at most 1.")


def generate(
    network: Network, prompt: Sequence[int], num_texts: int, max_words: int, sampling: Sampling, seed: int
) -> list[list[int]]:
    """Continue a prompt in `num_texts` ways, each up to `</s>` or `max_words` words; the prompt is not repeated."""
    check_texts(num_texts, max_words, seed)
    generator = np.random.default_rng(seed)
    prompt_TB = np.repeat(np.array([[END, *prompt]], dtype=np.int64).T, num_texts, axis=1)
    network.check_ids(prompt_TB)
    _, states = before_text(network, num_texts).read(prompt_TB)
    texts: list[list[int]] = [[] for _ in range(num_texts)]
    open_texts = set(range(num_texts))
    for _ in range(max_words):
        scores = (network.numpy(network.all_scores(rows_BD)) for rows_BD in network.row_blocks(states.hidden_BD))
        word_B = np.concatenate([sample_words(score_BV, sampling, generator) for score_BV in scores])
        for place in list(open_texts):
            texts[place].append(int(word_B[place]))
            if word_B[place] == END:
                open_texts.remove(place)
        if not open_texts:
            break
        _, states = states.read(word_B[None])
    return texts


def check_texts(num_texts: int, max_words: int, seed: int) -> None:
    """Refuse no texts, texts of no words, and a seed that no generator can take."""
    if num_texts < 1 or max_words < 1:
        raise UserError(
            f"{num_texts} texts of at most {max_words} words were requested: both numbers must be 1 or more."
        )
    if not 0 <= seed < 2**64:
        raise UserError(f"The seed is {seed}: it must be from 0 to 2^64 - 1.")


def sample_words(score_BV: Floats, sampling: Sampling, generator: np.random.Generator) -> Ints:
    """Choose one word per row (B,) from raw scores, which are written over."""
    score_BV[:, UNK] = -np.inf
    if sampling.temperature == 0:
        word_B: Ints = score_BV.argmax(1)
        return word_B
    if sampling.top_k:
        word_BK = highest(score_BV, sampling.top_k)
        prob_BK = _tempered(np.take_along_axis(score_BV, word_BK, 1), sampling.temperature)
        prob_BK = _cut(prob_BK, sampling.top_p)
    elif sampling.top_p < 1:
        prob_BK, word_BK = nucleus(_tempered(score_BV, sampling.temperature), sampling.top_p)
    else:
        return draw(_tempered(score_BV, sampling.temperature), generator)
    return np.take_along_axis(word_BK, draw(prob_BK, generator)[:, None], 1)[:, 0]


def highest(score_BV: Floats, num_words: int) -> Ints:
    """Find the places of the highest scores of each row, the highest first."""
    num_words = min(num_words, score_BV.shape[1])
    place_BK = np.argpartition(-score_BV, num_words - 1, axis=1)[:, :num_words]
    order_BK = np.argsort(-np.take_along_axis(score_BV, place_BK, 1), axis=1, kind="stable")
    return np.take_along_axis(place_BK, order_BK, 1)


def nucleus(prob_BV: Floats, top_p: float) -> tuple[Floats, Ints]:
    """Find the likeliest words that make up `top_p`, without sorting more of the vocabulary than about as many."""
    num_words = prob_BV.shape[1]
    num_kept = min(NUCLEUS_WORDS, num_words)
    while True:
        word_BK = highest(prob_BV, num_kept)
        prob_BK = np.take_along_axis(prob_BV, word_BK, 1)
        if num_kept == num_words or bool((prob_BK.sum(1) >= top_p).all()):
            return _cut(prob_BK, top_p), word_BK
        num_kept = min(8 * num_kept, num_words)


def draw(prob_BK: Floats, generator: np.random.Generator) -> Ints:
    """Draw one place per row (B,) by its weight: a point on the running sum, which one random number gives."""
    sum_BK = prob_BK.cumsum(1, dtype=np.float64)
    # A place of no weight ends where the one before it does, and is never the first to end beyond the point.
    point_B = generator.random(len(prob_BK)) * sum_BK[:, -1]
    point_B = np.minimum(point_B, np.nextafter(sum_BK[:, -1], 0))
    return np.array([np.searchsorted(row, point, side="right") for row, point in zip(sum_BK, point_B, strict=True)])


def _tempered(score_BK: Floats, temperature: float) -> Floats:
    """Turn scores into probabilities at a temperature."""
    # The highest becomes 0 first, which no temperature makes infinite; and a temperature that float32 holds as 0 or
    # as infinite is brought to one that does the same without 0 / 0.
    score_BK = (score_BK - score_BK.max(1, keepdims=True)) / np.float32(min(max(temperature, 1e-30), 1e30))
    prob_BK = np.exp(score_BK, out=score_BK)
    prob_BK /= prob_BK.sum(1, keepdims=True)
    return prob_BK


def _cut(prob_BK: Floats, top_p: float) -> Floats:
    """Keep the first words, highest first, up to the one with which they make up `top_p`; zero the others."""
    before_BK = prob_BK.cumsum(1, dtype=np.float64) - prob_BK
    return np.where(before_BK < top_p, prob_BK, 0.0)
