"""Rows for words that a model never saw: from `<unk>`, which stood for them, and from the words most like them.

A new word was `<unk>` in training, so its row starts from the row of `<unk>` and from the rows of its neighbours,
the words most similar to it: w = (1 − λ)·w_unk + λ·Σ_i a_i·w_i, a_i ∝ similarity², λ = √(best similarity).
With λ = 0 the word is exactly a share of `<unk>`.

A mean of rows is flatter than each of them and would take less probability than its bias says. So the bias comes
from what the row takes over contexts that the model itself makes up: ln mean_m exp(h_m·w − ln Z(h_m)).

Legend: A new words, K neighbours, M contexts, B texts side by side, D hidden, R a table's columns, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bnce.corpus.vocabulary import END, SPECIALS, UNK
from bnce.language_model import LanguageModel
from bnce.lexicon.spelling import nearest_words

NUM_NEIGHBOURS = 10
GIVEN_SIMILARITY = 0.7  # of neighbours that a person names
MIN_UNKNOWN = 100  # seen less often, <unk> knows nothing, and the rarest words stand for it
NUM_RARE = 1000
NUM_TEXTS, NUM_STEPS = 64, 32  # contexts made up: 2048
_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class Neighbours:
    """The words that a new one is made from, the most similar first; there may be none."""

    ids: list[int]
    similarities: list[float]

    @property
    def trust(self) -> float:
        """λ: how much the neighbours count beside `<unk>`."""
        return math.sqrt(min(1.0, self.similarities[0])) if self.similarities else 0.0


@dataclass(frozen=True)
class Contexts:
    """Hidden rows that a model meets, each with its ln Z."""

    hidden_MD: Tensor
    log_z_M: Tensor


def find_neighbours(words: Sequence[str], new_words: Sequence[str]) -> list[Neighbours]:
    """Find for each new word those that are spelt most like it; the specials are not looked at."""
    ordinary = words[len(SPECIALS) :]
    return [
        Neighbours([int(place) + len(SPECIALS) for place in found], [float(value) for value in cosines])
        for found, cosines in nearest_words(ordinary, new_words, NUM_NEIGHBOURS)
    ]


@torch.no_grad()
def make_up_contexts(model: LanguageModel) -> Contexts:
    """Let the model write texts, and note every context on the way."""
    generator = torch.Generator().manual_seed(1)
    input_LB = torch.full((model.num_context + 1, NUM_TEXTS), END)
    state = model.initial_state(NUM_TEXTS)
    hidden, log_z = [], []
    for _ in range(NUM_STEPS):
        hidden_TBD, state = model(input_LB, state)
        score_BV = model.output.all_scores(hidden_TBD[-1])
        log_z_B = torch.logsumexp(score_BV, dim=1)
        hidden.append(hidden_TBD[-1])
        log_z.append(log_z_B)
        # Where a draw falls in the running sum: a tenth of torch.multinomial's time at V = 800K.
        sum_BV = score_BV.sub_(log_z_B.unsqueeze(1)).exp_().cumsum(1)
        draw_B1 = torch.rand(NUM_TEXTS, 1, generator=generator) * sum_BV[:, -1:]
        word_B1 = torch.searchsorted(sum_BV, draw_B1).clamp_(max=sum_BV.shape[1] - 1)
        input_LB = torch.cat([input_LB, word_B1.t()])[1:]
    return Contexts(torch.cat(hidden), torch.cat(log_z))


@torch.no_grad()
def log_mass(weight_AD: Tensor, contexts: Contexts) -> Tensor:
    """Compute ln mean_m exp(h_m·w − ln Z(h_m)) of rows (A,): the probability each would have with a bias of 0."""
    blocks = [
        torch.logsumexp(contexts.hidden_MD @ part_AD.t() - contexts.log_z_M.unsqueeze(1), dim=0)
        for part_AD in weight_AD.split(_BLOCK_ROWS)
    ]
    return torch.cat(blocks) - math.log(len(contexts.log_z_M))


class Rows(NamedTuple):
    """The rows of new words in the three tables."""

    embedding_AR: Tensor
    weight_AD: Tensor
    bias_A: Tensor


@torch.no_grad()
def seed_rows(
    model: LanguageModel, counts_V: np.ndarray, new_counts_A: np.ndarray, neighbours: Sequence[Neighbours]
) -> Rows:
    """Make the rows of new words that occur `new_counts_A` times where the others occur `counts_V` times."""
    embedding, weight, bias = model.embedding.data, model.output.weight.data, model.output.bias.data
    base = torch.tensor(_base_words(counts_V))
    embedding_AR = _mix(embedding, embedding[base].mean(0), neighbours)
    weight_AD = _mix(weight, weight[base].mean(0), neighbours)
    contexts = make_up_contexts(model)
    # What a trained row takes is known: it is its share of the counts. So the sample's own error mostly cancels.
    log_count_base = torch.from_numpy(np.log(np.maximum(counts_V[base.numpy()], 1.0))).float()
    known = (bias[base] - log_count_base + log_mass(weight[base], contexts)).mean()
    bias_A = torch.from_numpy(np.log(new_counts_A)).float() + known - log_mass(weight_AD, contexts)
    return Rows(embedding_AR, weight_AD, bias_A)


def _base_words(counts_V: np.ndarray) -> np.ndarray:
    """Choose whom a word without neighbours takes after."""
    if counts_V[UNK] >= MIN_UNKNOWN:
        return np.array([UNK])
    order = np.argsort(counts_V[len(SPECIALS) :], kind="stable") + len(SPECIALS)
    return order[: min(NUM_RARE, max(1, len(order) // 2))]


def _mix(table_VR: Tensor, base_R: Tensor, neighbours: Sequence[Neighbours]) -> Tensor:
    rows_AR = base_R.repeat(len(neighbours), 1)
    for row_R, found in zip(rows_AR, neighbours, strict=True):
        if found.ids:
            weight_K = torch.tensor(found.similarities).square()
            mean_R = (weight_K / weight_K.sum()) @ table_VR[found.ids]
            row_R.lerp_(mean_R, found.trust)
    return rows_AR
