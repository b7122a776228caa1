"""The likeliest next words of a network, and text from it: sampled word by word, with the usual ways to keep to them.

Legend: B texts side by side, V vocabulary, K its likeliest words, D hidden.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnce.corpus.vocabulary import END, UNK
from bnce.errors import UserError
from bnce.language_model import LanguageModel
from bnce.output_layer import OutputLayer

# One block of scores: 2^22 numbers are 16 MB.
BLOCK_NUMBERS = 2**22
# Where the search for the words that make up top-p begins: a trained model seldom spreads over more.
NUCLEUS_WORDS = 1024
# A word of more pieces is none: a text of so many for every word ends.
MAX_PIECES = 32


@dataclass(frozen=True)
class Sampling:
    """How the next word is chosen; temperature 0 always takes the most likely word."""

    temperature: float = 1.0
    top_k: int = 0  # 0: all words
    top_p: float = 1.0
    allow_unknown: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(
                f"The temperature is {self.temperature}: it must be 0 (always take the most likely word) or above."
            )
        if self.top_k < 0:
            raise UserError(f"top-k is {self.top_k}: it must be 0 (all words) or above.")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p is {self.top_p}: it must be above 0 and at most 1.")


@torch.inference_mode()
def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    num_texts: int,
    max_words: int,
    sampling: Sampling,
    seed: int,
    starts_word: NDArray[np.bool_] | None = None,
) -> list[list[int]]:
    """Continue a prompt in `num_texts` ways, each up to `</s>` or `max_words` words; the prompt is not repeated.

    Where ids are pieces, `starts_word` says which of them begin a word.
    """
    check_texts(num_texts, max_words, seed)
    device = model.embedding.device
    generator = torch.Generator(device).manual_seed(seed)
    context = [END] * (model.num_context + 1) + list(prompt)
    input_LB = torch.tensor(context, device=device).unsqueeze(1).expand(-1, num_texts)
    state = model.initial_state(num_texts)
    texts: list[list[int]] = [[] for _ in range(num_texts)]
    open_texts = set(range(num_texts))
    num_words = [0] * num_texts
    for _ in range(max_words if starts_word is None else max_words * MAX_PIECES):
        hidden_TBD, state = model(input_LB, state)
        word_B = _next_words(model.output, hidden_TBD[-1], sampling, generator)
        for place, word in enumerate(word_B.tolist()):
            if place in open_texts:
                num_words[place] += starts_word is None or (word != END and bool(starts_word[word]))
                if num_words[place] <= max_words:
                    texts[place].append(word)
                if word == END or num_words[place] > max_words:
                    open_texts.remove(place)
        if not open_texts:
            break
        keep = input_LB[input_LB.shape[0] - model.num_context :] if model.num_context else input_LB[:0]
        input_LB = torch.cat([keep, word_B.unsqueeze(0)])
    return texts


@torch.inference_mode()
def top_words(
    output: OutputLayer, hidden_BD: Tensor, num_words: int, without: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the words with the highest raw scores: scores and words (B, K), the highest first, and ln Z(context) (B,).

    `without` is a word that must not be among them; it has its part in Z all the same.
    """
    num_rows = len(hidden_BD)
    if output.structure is not None and num_rows > (most := max(1, BLOCK_NUMBERS // output.vocab_size)):
        # Words cannot be taken block by block there: each needs the choices that lead to it.
        parts = [top_words(output, part_BD, num_words, without) for part_BD in hidden_BD.split(most)]
        best, word, log_normaliser = zip(*parts, strict=True)
        return torch.cat(best), torch.cat(word), torch.cat(log_normaliser)
    best_BK = hidden_BD.new_zeros(num_rows, 0, dtype=torch.float32)
    word_BK = torch.zeros(num_rows, 0, dtype=torch.int64, device=hidden_BD.device)
    log_normaliser_B = hidden_BD.new_full((num_rows,), -torch.inf, dtype=torch.float32)
    block_words = output.vocab_size if output.structure is not None else max(1024, BLOCK_NUMBERS // max(1, num_rows))
    for begin in range(0, output.vocab_size, block_words):
        end = min(begin + block_words, output.vocab_size)
        score_BV = output.scores_between(hidden_BD, begin, end)
        log_normaliser_B = torch.logaddexp(log_normaliser_B, torch.logsumexp(score_BV, dim=1))
        if without is not None and begin <= without < end:
            score_BV[:, without - begin] = -torch.inf
        found_BK, place_BK = torch.topk(score_BV, min(num_words, end - begin), dim=1)
        both_BK = torch.cat([best_BK, found_BK], dim=1)
        both_word_BK = torch.cat([word_BK, place_BK + begin], dim=1)
        best_BK, order_BK = torch.topk(both_BK, min(num_words, both_BK.shape[1]), dim=1)
        word_BK = both_word_BK.gather(1, order_BK)
    return best_BK, word_BK, log_normaliser_B


def check_texts(num_texts: int, max_words: int, seed: int) -> None:
    """Refuse no texts, texts of no words, and a seed that PyTorch cannot take."""
    if num_texts < 1 or max_words < 1:
        raise UserError(
            f"{num_texts} texts of at most {max_words} words were requested: both numbers must be 1 or more."
        )
    if not 0 <= seed < 2**64:
        raise UserError(f"The seed is {seed}: it must be from 0 to 2^64 - 1.")


def sample_words(score_BV: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Choose one word per row (B,) from raw scores."""
    if not sampling.allow_unknown:
        score_BV[:, UNK] = -torch.inf
    if sampling.temperature == 0:
        return score_BV.argmax(1)
    if sampling.top_k:
        score_BK, word_BK = torch.topk(score_BV, min(sampling.top_k, score_BV.shape[1]), dim=1)
        return _sample_highest(score_BK, word_BK, sampling, generator)
    prob_BV = _tempered(score_BV, score_BV.amax(1, keepdim=True), sampling.temperature)
    if sampling.top_p == 1:
        return _draw(prob_BV, generator)
    prob_BK, word_BK = _nucleus(prob_BV, sampling.top_p)
    return word_BK.gather(1, _draw(prob_BK, generator).unsqueeze(1)).squeeze(1)


def _next_words(output: OutputLayer, hidden_BD: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Choose one word per text (B,), in bounded memory."""
    num_highest = 1 if sampling.temperature == 0 else sampling.top_k
    if num_highest:
        # The whole vocabulary is never laid out where only its highest scores are asked for.
        without = None if sampling.allow_unknown else UNK
        score_BK, word_BK, _ = top_words(output, hidden_BD, num_highest, without)
        return _sample_highest(score_BK, word_BK, sampling, generator)
    rows = max(1, BLOCK_NUMBERS // output.vocab_size)
    parts = [sample_words(output.all_scores(part), sampling, generator) for part in hidden_BD.split(rows)]
    return torch.cat(parts)


def _sample_highest(score_BK: Tensor, word_BK: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Choose among words that come highest first."""
    if sampling.temperature == 0:
        return word_BK[:, 0]
    prob_BK = _tempered(score_BK, score_BK[:, :1], sampling.temperature)
    prob_BK = _cut(prob_BK, sampling.top_p)
    return word_BK.gather(1, _draw(prob_BK, generator).unsqueeze(1)).squeeze(1)


def _tempered(score_BK: Tensor, highest_B1: Tensor, temperature: float) -> Tensor:
    """Turn scores into probabilities at a temperature."""
    # The highest becomes 0 first, which no temperature makes infinite; and a temperature that float32 holds as 0 or
    # as infinite is brought to one that does the same without 0 / 0.
    return torch.softmax((score_BK - highest_B1) / min(max(temperature, 1e-30), 1e30), dim=1)


def _nucleus(prob_BV: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Find the likeliest words that make up `top_p`, without sorting more of the vocabulary than about as many."""
    num_words = prob_BV.shape[1]
    num_kept = min(NUCLEUS_WORDS, num_words)
    while True:
        prob_BK, word_BK = torch.topk(prob_BV, num_kept, dim=1)
        if num_kept == num_words or bool((prob_BK.sum(1) >= top_p).all()):
            return _cut(prob_BK, top_p), word_BK
        num_kept = min(8 * num_kept, num_words)


def _cut(prob_BK: Tensor, top_p: float) -> Tensor:
    """Keep the first words, highest first, up to the one with which they make up `top_p`; zero the others."""
    before_BK = prob_BK.cumsum(1) - prob_BK
    return torch.where(before_BK < top_p, prob_BK, 0.0)


def _draw(prob_BK: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one place per row (B,) by its weight: a point on the running sum, which one random number gives."""
    # In float64, where the sum of 800,000 small numbers loses none of them.
    sum_BK = prob_BK.double().cumsum(1)
    total_B1 = sum_BK[:, -1:]
    point_B1 = torch.rand(len(prob_BK), 1, dtype=torch.float64, device=prob_BK.device, generator=generator) * total_B1
    # A place of no weight ends where the one before it does, and is never the first to end beyond the point.
    point_B1 = torch.minimum(point_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
    return torch.searchsorted(sum_BK, point_B1, right=True).squeeze(1)
