"""A run's network in PyTorch, on a CPU or a GPU, in float32.

Legend: T time steps, B texts side by side, L words read, N positions, K words, V vocabulary, D hidden, W different
words, P different states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnce.language_model import LanguageModel
from bnce.machine.precision import float32_products
from bnce.models.body import State
from bnce.output_layer import OutputLayer
from bnce.scoring import engine
from bnce.scoring.engine import Engine, Floats, Ints

# Sentences side by side and words in one pass: wider is no faster on a CPU, and fills a GPU.
PARALLEL = {"cpu": 128, "cuda": 2**12}
PASS_WORDS = {"cpu": 2**12, "cuda": 2**17}

Method = TypeVar("Method", bound=Callable[..., Any])


def _computing(method: Method) -> Method:
    """Let a method compute without gradients, and products in full float32."""
    return torch.inference_mode()(float32_products(tf32=False)(method))


class TorchEngine(Engine):
    """Runs a `LanguageModel` where its weights are."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model.eval()
        self.output = model.output
        self.vocab_size, self.loss_name = self.output.vocab_size, self.output.loss_name
        self.is_exact = self.output.structure is not None
        self.num_context, self.num_words_seen = model.num_context, model.body.num_words
        self._place = model.embedding.device
        self.branches, self.attends = model.body.branches, model.body.context > 0
        # A GPU would wait for the host at every word.
        self.reads_trees = self.branches and self._place.type == "cpu"
        self.device = str(self._place)
        self.num_parallel, self.pass_words = PARALLEL[self._place.type], PASS_WORDS[self._place.type]

    # The layer is asked each time: a calibration or a test may change it.
    @property
    def log_z(self) -> float:  # type: ignore[override]
        """The constant ln Z."""
        return float(self.output.log_z)

    @property
    def normalises(self) -> bool:  # type: ignore[override]
        """Whether the constant Z may replace the softmax sum."""
        return self.output.normalises

    @_computing
    def initial_state(self, num_texts: int) -> State:
        """Make the state that a text starts from."""
        return self.model.initial_state(num_texts)

    @_computing
    def run(self, word_LB: Ints, state: State) -> tuple[Tensor, State]:
        """Read words."""
        hidden_TBD, after = self.model(self.array(word_LB), state)
        return hidden_TBD, after

    @_computing
    def enter(self, word_W: Ints) -> Tensor:
        """Compute of words what does not depend on states."""
        return self.model.body.prepare_words(self.model.embedding.index_select(0, self.array(word_W)))

    @_computing
    def branch(self, entered: Tensor, word_B: Ints, state: State, parent_B: Ints) -> tuple[Tensor, State]:
        """Run one step into pairs of words and states."""
        return self.model.body.branch(entered, self.array(word_B), state, self.array(parent_B))

    @_computing
    def scores(self, hidden_ND: Tensor, words_NK: Ints) -> Tensor:
        """Compute the raw scores of K words for each position."""
        return self.output.scores(hidden_ND, self.array(words_NK))

    @_computing
    def all_scores(self, hidden_ND: Tensor) -> Tensor:
        """Compute the raw scores of every word."""
        return self.output.all_scores(hidden_ND)

    @_computing
    def log_normaliser(self, hidden_ND: Tensor) -> Tensor:
        """Compute ln Z(context)."""
        return self.output.log_normaliser(hidden_ND)

    @_computing
    def top_words(self, hidden_BD: Tensor, num_words: int, without: int | None = None) -> tuple[Floats, Ints, Floats]:
        """Find the words with the highest raw scores."""
        best, word, log_normaliser = map(self.numpy, top_words(self.output, hidden_BD, num_words, without))
        return best, word, log_normaliser

    @_computing
    def entropy(self, hidden_ND: Tensor) -> NDArray[np.float64]:
        """Compute the entropy of the next word."""
        parts = [np.zeros(0)]
        for hidden_BD in hidden_ND.split(max(1, engine.BLOCK_NUMBERS // self.vocab_size)):
            log_prob_BV = torch.log_softmax(self.output.all_scores(hidden_BD), dim=1)
            entropy_B = -(log_prob_BV.exp() * log_prob_BV).sum(dim=1, dtype=torch.float64)
            parts.append(entropy_B.cpu().numpy())
        return np.concatenate(parts)

    @_computing
    def take(self, array: Tensor, place_N: Ints, axis: int = 0) -> Tensor:
        """Take some places."""
        return array.index_select(axis, self.array(place_N))

    @_computing
    def put(self, array: Tensor, place_N: Ints, value_N: Tensor) -> None:
        """Write to some places."""
        array[self.array(place_N)] = value_N.clone()  # which may be a part of the array

    @_computing
    def concatenate(self, arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
        """Lay tensors one behind the other."""
        return torch.cat(list(arrays), dim=axis)

    def array(self, numbers: NDArray[Any]) -> Tensor:
        """Make a tensor where the network is."""
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self._place)

    def numpy(self, array: Tensor) -> NDArray[Any]:
        """Give a tensor to the host."""
        return array.cpu().numpy()


def top_words(
    output: OutputLayer, hidden_BD: Tensor, num_words: int, without: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the words with the highest raw scores: scores and words (B, K), the highest first, and ln Z(context) (B,).

    `without` is a word that must not be among them; it has its part in Z all the same.
    """
    num_rows = len(hidden_BD)
    if output.structure is not None and num_rows > (most := max(1, engine.BLOCK_NUMBERS // output.vocab_size)):
        # Words cannot be taken block by block there: each needs the choices that lead to it.
        parts = [top_words(output, part_BD, num_words, without) for part_BD in hidden_BD.split(most)]
        best, word, log_normaliser = zip(*parts, strict=True)
        return torch.cat(best), torch.cat(word), torch.cat(log_normaliser)
    best_BK = hidden_BD.new_zeros(num_rows, 0, dtype=torch.float32)
    word_BK = torch.zeros(num_rows, 0, dtype=torch.int64, device=hidden_BD.device)
    log_normaliser_B = hidden_BD.new_full((num_rows,), -torch.inf, dtype=torch.float32)
    block_words = max(1024, engine.BLOCK_NUMBERS // max(1, num_rows))
    if output.structure is not None:
        block_words = output.vocab_size
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
