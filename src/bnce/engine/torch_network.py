"""A network that PyTorch computes, on a CPU or a GPU.

Legend: T time steps, B rows, L words read, N positions, K words, V vocabulary, D hidden, W different words.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnce.engine.network import Floats, Ints, Network
from bnce.errors import UserError, argument, unknown_name
from bnce.language_model import LanguageModel
from bnce.machine.precision import float32_products
from bnce.models.body import State

# Wider is no faster on a CPU, and fills a GPU.
MAX_ROWS = {"cpu": 128, "cuda": 2048}
MAX_POSITIONS = {"cpu": 2**12, "cuda": 2**17}
MIN_STEPS = {"cpu": 16, "cuda": 64}
PRECISIONS = ("float32", "tf32", "bf16")

Method = TypeVar("Method", bound=Callable[..., Any])


def _computing(method: Method) -> Method:
    """Let a method compute without gradients, in the network's precision."""

    @functools.wraps(method)
    def computing(self: TorchNetwork, *given: Any, **named: Any) -> Any:
        narrow = torch.autocast(self._place.type, torch.bfloat16, self.precision == "bf16", cache_enabled=False)
        with torch.inference_mode(), float32_products(tf32=self.precision == "tf32"), narrow:
            return method(self, *given, **named)

    return computing  # type: ignore[return-value]


class TorchNetwork(Network):
    """Computes a `LanguageModel` where its weights are."""

    def __init__(self, model: LanguageModel, precision: str = "float32") -> None:
        if precision not in PRECISIONS:
            raise unknown_name("precision", precision, PRECISIONS)
        place = model.embedding.device
        if precision != "float32" and place.type == "cpu":
            raise UserError(f"The precision is {precision}, which is for GPUs: use {argument('precision', 'float32')}.")
        self.model, self.output, self.precision, self._place = model.eval(), model.output, precision, place
        self.vocab_size, self.loss_name = self.output.vocab_size, self.output.loss_name
        self.hidden_size = self.output.hidden_size
        self.is_exact = self.output.structure is not None
        self.num_context, self.num_words_seen = model.num_context, model.body.num_words
        self.device = str(place)
        self.max_rows = self.rows_at_once(MAX_ROWS[place.type])
        self.max_positions, self.min_steps = MAX_POSITIONS[place.type], MIN_STEPS[place.type]
        # A GPU would wait for the host at every word.
        self.prefers_tree = model.body.branches and place.type == "cpu"

    # The layer is asked each time: a calibration or a test may change it.
    @property
    def log_z(self) -> float:  # type: ignore[override]
        """The constant ln Z."""
        return float(self.output.log_z)

    @property
    def normalises(self) -> bool:  # type: ignore[override]
        """Whether the constant Z may replace the softmax sum."""
        return self.output.normalises

    @torch.inference_mode()
    def initial_state(self, num_rows: int) -> State:
        """Make the state that a text starts from."""
        return self.model.initial_state(num_rows)

    @_computing
    def forward(self, ids_LB: Ints, state: State) -> tuple[Tensor, State]:
        """Read words."""
        return self.model(self.array(ids_LB), state)  # type: ignore[no-any-return]

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
    def entropy(self, hidden_ND: Tensor) -> Tensor:
        """Compute the entropy of the next word."""
        parts = [torch.zeros(0, dtype=torch.float64, device=self._place)]
        for hidden_BD in self.row_blocks(hidden_ND):
            log_prob_BV = torch.log_softmax(self.output.all_scores(hidden_BD), dim=1)
            parts.append(-(log_prob_BV.exp() * log_prob_BV).sum(dim=1, dtype=torch.float64))
        return torch.cat(parts)

    @_computing
    def top_words(self, hidden_ND: Tensor, k: int) -> tuple[Floats, Ints, Floats]:
        """Find the words with the highest raw scores."""
        parts = []
        for hidden_BD in self.row_blocks(hidden_ND):
            score_BV = self.output.all_scores(hidden_BD)
            parts.append((*score_BV.topk(min(k, self.vocab_size)), score_BV.logsumexp(1)))
        best_NK, word_NK, log_z_N = (self.numpy(torch.cat(part)) for part in zip(*parts, strict=True))
        return best_NK, word_NK, log_z_N

    @torch.inference_mode()
    def take(self, array: Tensor, place_N: Ints, axis: int = 0) -> Tensor:
        """Take some places."""
        return array.index_select(axis, self.array(place_N))

    @torch.inference_mode()
    def concatenate(self, arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
        """Lay tensors one behind the other."""
        return torch.cat(list(arrays), dim=axis)

    def array(self, numbers: NDArray[Any]) -> Tensor:
        """Make a tensor where the network is."""
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self._place)

    def numpy(self, array: Tensor) -> NDArray[Any]:
        """Give a tensor to the host."""
        return array.cpu().numpy()
