"""Log-probabilities of many sentences at once, with the constant Z or with the softmax. Logarithms are natural.

Sentences of like length go through the network side by side, each from a fresh state; carried over, the text is one
stream. Only the output rows of the words that occur are read, unless the softmax is asked for.

Legend: T time steps, B sentences side by side, C context words of an n-gram body, L = C + T, D hidden, N positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnce.corpus.vocabulary import END
from bnce.errors import UserError
from bnce.language_model import LanguageModel
from bnce.machine.precision import float32_products
from bnce.scoring.scorer import check_ids, num_side_by_side, refuse_unnormalised

# Sentences side by side and words in one pass through the network: wider is no faster on a CPU, and fills a GPU.
PARALLEL = {"cpu": 128, "cuda": 2**12}
PASS_WORDS = {"cpu": 2**12, "cuda": 2**17}
# Words laid out at once, padding counted: a few very long sentences stand alone.
GROUP_WORDS = 2**20

Ids = Sequence[int] | NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Check:
    """How far the constant is from the truth on a sample of positions; differences of ln p are unnormalised − exact."""

    num_positions: int
    mean_difference: float
    max_difference: float  # of absolute values
    log_z: float  # the constant, ln Z
    log_z_mean: float  # of ln Z(context)
    log_z_std: float


class SentenceScorer:
    """Scores sentences of ids, any number of times over; with `carry` each goes on from where the one before ended.

    Probabilities are the softmax's (`normalised`), or with the constant Z. With `num_checked`, so many random
    positions are kept, and `check` compares the constant with the softmax there.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        normalised: bool = False,
        carry: bool = False,
        num_checked: int | None = None,
        seed: int = 1,
    ) -> None:
        if not normalised or num_checked is not None:
            refuse_unnormalised(model)
        self.model, self.normalised = model.eval(), normalised
        device = model.embedding.device.type
        self._num_parallel, self._pass_words = num_side_by_side(self.model, PARALLEL[device]), PASS_WORDS[device]
        self._stream = _Stream(model) if carry else None
        self._sample = None if num_checked is None else _Sample(num_checked, seed)

    def begin_document(self) -> None:
        """Start afresh: forget the earlier sentences."""
        if self._stream is not None:
            self._stream = _Stream(self.model)

    @torch.inference_mode()
    def score(self, sentences: Sequence[Ids]) -> list[Floats]:
        """Compute ln p of every word of every sentence; `</s>` is scored where a sentence holds it."""
        if not sentences:
            return []
        parts = [np.asarray(sentence, dtype=np.int64) for sentence in sentences]
        length_S = np.array([len(part) for part in parts])
        word_N = np.concatenate(parts)
        check_ids(self.model, int(word_N.min(initial=0)), int(word_N.max(initial=0)))
        with float32_products(tf32=False):
            if self._stream is None:
                return self._score_apart(parts, length_S)
            log_prob_N = self._score_stream(self._stream, word_N)
            return np.split(log_prob_N, np.cumsum(length_S)[:-1])

    @torch.inference_mode()
    def check(self) -> Check | None:
        """Compute the exact values at the sample of positions; None where none is kept."""
        if self._sample is None:
            return None
        output = self.model.output
        log_z = float(output.log_z)
        hidden_ND = self._sample.hidden_ND
        if hidden_ND is None:
            nan = float("nan")
            return Check(0, nan, nan, log_z, nan, nan)
        with float32_products(tf32=False):
            log_normaliser_N = output.log_normaliser(hidden_ND).double()
        difference_N = log_normaliser_N - log_z
        return Check(
            num_positions=len(hidden_ND),
            mean_difference=float(difference_N.mean()),
            max_difference=float(difference_N.abs().max()),
            log_z=log_z,
            log_z_mean=float(log_normaliser_N.mean()),
            log_z_std=float(log_normaliser_N.std(correction=0)),
        )

    def _score_apart(self, sentences: list[NDArray[np.int64]], length_S: NDArray[np.int64]) -> list[Floats]:
        # The longest first: in a group of neighbours little is padding, and those that go on are the first ones.
        order_S = np.argsort(-length_S, kind="stable")
        scores = [np.empty(length) for length in length_S]
        num_context = self.model.num_context
        for group_B in _groups(order_S, length_S, self._num_parallel):
            length_B = length_S[group_B]
            word_LB = np.full((1 + num_context + length_B[0], len(group_B)), END, dtype=np.int64)
            for place, number in enumerate(group_B):
                word_LB[1 + num_context : 1 + num_context + length_S[number], place] = sentences[number]
            log_prob_TB = self._score_group(torch.from_numpy(word_LB), torch.from_numpy(length_B))
            for place, number in enumerate(group_B):
                scores[number] = log_prob_TB[: length_S[number], place]
        return scores

    def _score_group(self, word_LB: Tensor, length_B: Tensor) -> Floats:
        """Score sentences side by side, the longest first; `word_LB` has their context before them."""
        device = self.model.embedding.device
        num_context = self.model.num_context
        num_steps = len(word_LB) - 1 - num_context
        log_prob_TB = np.zeros((num_steps, len(length_B)))
        state = self.model.initial_state(len(length_B))
        begin = 0
        while begin < num_steps:
            num_active = int((length_B > begin).sum())
            end = min(num_steps, begin + max(1, self._pass_words // num_active))
            state = tuple(part[:, :num_active].contiguous() for part in state)
            input_LB = word_LB[begin : end + num_context, :num_active].to(device)
            hidden_TBD, state = self.model(input_LB, state)
            inside_TB = torch.arange(begin, end).unsqueeze(1) < length_B[:num_active]
            target_TB = word_LB[1 + num_context :][begin:end, :num_active]
            log_prob_N = self._values(hidden_TBD[inside_TB.to(device)], target_TB[inside_TB])
            log_prob_TB[begin:end, :num_active][inside_TB.numpy()] = log_prob_N
            begin = end
        return log_prob_TB

    def _score_stream(self, stream: _Stream, word_N: NDArray[np.int64]) -> Floats:
        """Score the next words of a text that never starts anew."""
        device = self.model.embedding.device
        num_context = self.model.num_context
        word_L = torch.cat([stream.last_words, torch.from_numpy(word_N)])
        parts = [np.zeros(0)]
        for begin in range(0, len(word_N), self._pass_words):
            target_N = word_L[1 + num_context :][begin : begin + self._pass_words]
            input_LB = word_L[begin : begin + len(target_N) + num_context].unsqueeze(1).to(device)
            hidden_TBD, stream.state = self.model(input_LB, stream.state)
            parts.append(self._values(hidden_TBD[:, 0], target_N))
        stream.last_words = word_L[len(word_L) - 1 - num_context :].clone()
        return np.concatenate(parts)

    def _values(self, hidden_ND: Tensor, target_N: Tensor) -> Floats:
        """Compute ln p of the targets."""
        output = self.model.output
        score_N = output.scores(hidden_ND, target_N.to(hidden_ND.device).unsqueeze(1)).squeeze(1)
        constant = output.log_normaliser(hidden_ND) if self.normalised else output.log_z
        if self._sample is not None:
            self._sample.add(hidden_ND)
        log_prob_N: Floats = (score_N - constant).double().cpu().numpy()
        return log_prob_N


class _Stream:
    """Where a text that is carried over has come to: the words that come next are predicted from here."""

    def __init__(self, model: LanguageModel) -> None:
        self.state = model.initial_state(1)
        self.last_words = torch.full((1 + model.num_context,), END)


class _Sample:
    """Positions drawn fairly from as many as come by: each draws a number, and the smallest numbers stay."""

    def __init__(self, size: int, seed: int) -> None:
        if size < 1:
            raise UserError(f"The number of positions to check is {size}: it must be 1 or more.")
        self.size = size
        self.hidden_ND: Tensor | None = None
        self._draw_N = np.zeros(0)
        self._generator = np.random.default_rng(seed)

    def add(self, hidden_ND: Tensor) -> None:
        """Let some positions take part."""
        draw_N = self._generator.random(len(hidden_ND))
        limit = self._draw_N.max() if len(self._draw_N) == self.size else 1.0
        (place_N,) = np.nonzero(draw_N < limit)
        chosen_ND = hidden_ND[torch.from_numpy(place_N).to(hidden_ND.device)]
        both_ND = chosen_ND if self.hidden_ND is None else torch.cat([self.hidden_ND, chosen_ND])
        both_N = np.concatenate([self._draw_N, draw_N[place_N]])
        kept_N = np.argsort(both_N)[: self.size]
        self._draw_N, self.hidden_ND = both_N[kept_N], both_ND[torch.from_numpy(kept_N).to(both_ND.device)]


def _groups(order_S: NDArray[np.int64], length_S: NDArray[np.int64], num_parallel: int) -> Iterator[NDArray[np.int64]]:
    """Cut sentences, the longest first, into groups that go through the network together; empty ones need not."""
    begin = 0
    num_sentences = int(np.count_nonzero(length_S))
    while begin < num_sentences:
        longest = int(length_S[order_S[begin]])
        end = min(num_sentences, begin + max(1, min(num_parallel, GROUP_WORDS // longest)))
        yield order_S[begin:end]
        begin = end
