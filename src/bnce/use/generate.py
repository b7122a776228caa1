"""Text from a model: sampled word by word, with the usual ways to keep to the likely ones.

Legend: B texts side by side, V vocabulary, D hidden.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnce.corpus.vocabulary import END, UNK
from bnce.errors import UserError
from bnce.language_model import LanguageModel


@dataclass(frozen=True)
class Sampling:
    """How the next word is chosen; temperature 0 always takes the likeliest."""

    temperature: float = 1.0
    top_k: int = 0  # 0: all words
    top_p: float = 1.0
    allow_unknown: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"The temperature is {self.temperature}: it must be 0 (take the likeliest word) or above.")
        if self.top_k < 0:
            raise UserError(f"top-k is {self.top_k}: it must be 0 (all words) or above.")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p is {self.top_p}: it must be above 0 and at most 1.")


@torch.no_grad()
def generate(
    model: LanguageModel, prompt: Sequence[int], num_texts: int, max_words: int, sampling: Sampling, seed: int
) -> list[list[int]]:
    """Continue a prompt in `num_texts` ways, each up to `</s>` or `max_words` words; the prompt is not repeated."""
    device = model.embedding.device
    generator = torch.Generator(device).manual_seed(seed)
    context = [END] * (model.num_context + 1) + list(prompt)
    input_LB = torch.tensor(context, device=device).unsqueeze(1).expand(-1, num_texts)
    state = model.initial_state(num_texts)
    texts: list[list[int]] = [[] for _ in range(num_texts)]
    open_texts = set(range(num_texts))
    for _ in range(max_words):
        hidden_TBD, state = model(input_LB, state)
        word_B = sample_words(model.output.all_scores(hidden_TBD[-1]), sampling, generator)
        for place, word in enumerate(word_B.tolist()):
            if place in open_texts:
                texts[place].append(word)
                if word == END:
                    open_texts.remove(place)
        if not open_texts:
            break
        keep = input_LB[input_LB.shape[0] - model.num_context :] if model.num_context else input_LB[:0]
        input_LB = torch.cat([keep, word_B.unsqueeze(0)])
    return texts


def sample_words(score_BV: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Choose one word a row (B,) from raw scores."""
    if not sampling.allow_unknown:
        score_BV[:, UNK] = -torch.inf
    if sampling.temperature == 0:
        return score_BV.argmax(1)
    # Highest first, so that both limits are prefixes.
    num_kept = min(sampling.top_k or score_BV.shape[1], score_BV.shape[1])
    score_BK, word_BK = torch.topk(score_BV, num_kept, dim=1)
    # The highest becomes 0 first, which no temperature, however small, makes infinite.
    prob_BK = torch.softmax((score_BK - score_BK[:, :1]) / sampling.temperature, dim=1)
    before_BK = prob_BK.cumsum(1) - prob_BK
    prob_BK = torch.where(before_BK < sampling.top_p, prob_BK, 0.0)
    place_B1 = torch.multinomial(prob_BK, 1, generator=generator)
    return word_BK.gather(1, place_B1).squeeze(1)
