"""A network that PyTorch computes, on a CPU or a GPU.

On a GPU a body that can be reset anywhere always sees passes of the same steps and of a few numbers of rows: each such
pass is captured as a CUDA graph and replayed.

Legend: T time steps, B rows, L words read, N positions, K words, V vocabulary, D hidden, W different words.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnce.engine import network
from bnce.engine.network import Bools, Floats, Ints, Network
from bnce.errors import UserError, argument, unknown_name
from bnce.language_model import LanguageModel
from bnce.machine.capturing import SideStream
from bnce.machine.precision import float32_products
from bnce.models.body import State
from bnce.output_layer import OutputLayer

# Wider is no faster on a CPU, and fills a GPU.
MAX_ROWS = {"cpu": 128, "cuda": 2048}
MAX_POSITIONS = {"cpu": 2**12, "cuda": 2**17}
FIXED_STEPS = 64
NARROWER = 4  # a GPU has graphs of so many times fewer rows, down to MIN_ROWS
MIN_ROWS = 32
NUM_EAGER = 3  # passes before a graph is captured: Triton compiles and libraries choose in these
PRECISIONS = ("float32", "tf32", "bf16")

Method = TypeVar("Method", bound=Callable[..., Any])


def _computing(method: Method) -> Method:
    """Let a method compute without gradients, in the network's precision."""

    @functools.wraps(method)
    def computing(self: TorchNetwork, *given: Any, **named: Any) -> Any:
        with torch.inference_mode(), float32_products(tf32=self.precision == "tf32"), self._autocast():
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
        self.max_positions = MAX_POSITIONS[place.type]
        # A body that attends cannot be reset within a pass, and has the host wait to know how much it has read.
        # On a CPU a pass in one call takes half the time of one step after the other, as resets need (LSTM of 600
        # units; RNN: three quarters).
        self.fixed_steps = FIXED_STEPS if place.type == "cuda" and not model.body.context else None
        # A GPU would wait for the host at every word.
        self.prefers_tree = model.body.branches and place.type == "cpu"
        self._passes: dict[int, _Pass] = {}

    # The layer is asked each time: a calibration or a test may change it.
    @property
    def log_z(self) -> float:  # type: ignore[override]
        """The constant ln Z."""
        return float(self.output.log_z)

    @property
    def normalises(self) -> bool:  # type: ignore[override]
        """Whether the constant Z may replace the softmax sum."""
        return self.output.normalises

    def _autocast(self) -> contextlib.AbstractContextManager[None]:
        if self.precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self._place.type, dtype=torch.bfloat16, cache_enabled=False)

    @torch.inference_mode()
    def initial_state(self, num_rows: int) -> State:
        """Make the state that a text starts from."""
        return self.model.initial_state(num_rows)

    @_computing
    def forward(self, ids_LB: Ints, state: State, reset_LB: Bools | None = None) -> tuple[Tensor, State]:
        """Read words; at a fixed shape the results are written over by the next pass of as many rows."""
        if reset_LB is None or self._place.type == "cpu":
            reset = None if reset_LB is None else self.array(reset_LB)
            return self.model(self.array(ids_LB), state, reset)  # type: ignore[no-any-return]
        width = ids_LB.shape[1]
        if width not in self._passes:
            self._passes[width] = _Pass(self.model, self.array(ids_LB), self.array(reset_LB))
        return self._passes[width].run(self.array(ids_LB), self.array(reset_LB), state)

    def width(self, num_rows: int) -> int:
        """Say how many rows a pass should have: on a GPU one of a few numbers, each of which has its graph."""
        if self.fixed_steps is None:
            return num_rows
        width = self.max_rows
        while width // NARROWER >= max(num_rows, MIN_ROWS):
            width //= NARROWER
        return width

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
        for hidden_BD in hidden_ND.split(max(1, network.BLOCK_NUMBERS // self.vocab_size)):
            log_prob_BV = torch.log_softmax(self.output.all_scores(hidden_BD), dim=1)
            parts.append(-(log_prob_BV.exp() * log_prob_BV).sum(dim=1, dtype=torch.float64))
        return torch.cat(parts)

    @_computing
    def top_words(self, hidden_ND: Tensor, k: int, without: int | None = None) -> tuple[Floats, Ints, Floats]:
        """Find the words with the highest raw scores."""
        best, word, log_normaliser = map(self.numpy, _top_words(self.output, hidden_ND, k, without))
        return best, word, log_normaliser

    @torch.inference_mode()
    def take(self, array: Tensor, place_N: Ints, axis: int = 0) -> Tensor:
        """Take some places."""
        return array.index_select(axis, self.array(place_N))

    @torch.inference_mode()
    def put(self, array: Tensor, place_N: Ints, value_N: Tensor) -> None:
        """Write to some places."""
        array[self.array(place_N)] = value_N.clone()  # which may be a part of the array

    @torch.inference_mode()
    def concatenate(self, arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
        """Lay tensors one behind the other."""
        return torch.cat(list(arrays), dim=axis)

    def array(self, numbers: NDArray[Any]) -> Tensor:
        """Make a tensor where the network is; a GPU takes it while it computes."""
        tensor = torch.from_numpy(np.ascontiguousarray(numbers))
        return tensor if self._place.type == "cpu" else tensor.pin_memory().to(self._place, non_blocking=True)

    def numpy(self, array: Tensor) -> NDArray[Any]:
        """Give a tensor to the host."""
        return array.cpu().numpy()

    @torch.inference_mode()
    def begin_fetch(self, arrays: Sequence[Tensor | None]) -> Callable[[], list[Any]]:
        """Copy tensors to the host once they are there; the result waits for these copies alone."""
        if self._place.type == "cpu":
            return lambda: [None if array is None else array.numpy() for array in arrays]
        arrays = [
            None if array is None else array.to(torch.promote_types(array.dtype, torch.float32)) for array in arrays
        ]
        copies = [None if array is None else torch.empty_like(array, device="cpu", pin_memory=True) for array in arrays]
        for copy, array in zip(copies, arrays, strict=True):
            if copy is not None and array is not None:
                copy.copy_(array, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._place))

        def fetch() -> list[Any]:
            event.synchronize()
            return [None if copy is None else copy.numpy() for copy in copies]

        return fetch


class _Pass:
    """A pass of one shape: run as it is a few times, then captured and replayed."""

    def __init__(self, model: LanguageModel, ids_LB: Tensor, reset_LB: Tensor) -> None:
        self._model, self._ids_LB, self._reset_LB = model, ids_LB.clone(), reset_LB.clone()
        self._state = model.initial_state(ids_LB.shape[1])
        self._side = SideStream(ids_LB.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._num_eager = 0
        self._found: tuple[Tensor, State]

    def run(self, ids_LB: Tensor, reset_LB: Tensor, state: State) -> tuple[Tensor, State]:
        """Run it; the result is written over by the next call."""
        self._ids_LB.copy_(ids_LB)
        self._reset_LB.copy_(reset_LB)
        for part, new in zip(self._state, state, strict=True):
            part.copy_(new)
        if self._num_eager < NUM_EAGER:
            self._num_eager += 1
            self._side.run(self._compute)
            return self._found
        if self._graph is None:
            self._graph = self._side.capture(self._compute)
        self._graph.replay()
        return self._found

    def _compute(self) -> None:
        self._found = self._model(self._ids_LB, self._state, self._reset_LB)


def _top_words(output: OutputLayer, hidden_ND: Tensor, k: int, without: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Find the highest scores, their words and ln Z in one pass over the vocabulary."""
    # Words of an exact layer cannot be taken block by block: each needs the choices that lead to it.
    num_rows, V = len(hidden_ND), output.vocab_size
    most = max(1, network.BLOCK_NUMBERS // V) if output.structure is not None else num_rows
    if num_rows > most:
        parts = [_top_words(output, part_ND, k, without) for part_ND in hidden_ND.split(most)]
        best, words, log_z = (torch.cat(part) for part in zip(*parts, strict=True))
        return best, words, log_z
    block_words = V if output.structure is not None else max(1024, network.BLOCK_NUMBERS // max(1, num_rows))
    best_NK = hidden_ND.new_zeros(num_rows, 0, dtype=torch.float32)
    word_NK = torch.zeros(num_rows, 0, dtype=torch.int64, device=hidden_ND.device)
    log_z_N = hidden_ND.new_full((num_rows,), -torch.inf, dtype=torch.float32)
    for begin in range(0, V, block_words):
        end = min(begin + block_words, V)
        score_NV = output.scores_between(hidden_ND, begin, end)
        log_z_N = torch.logaddexp(log_z_N, torch.logsumexp(score_NV, dim=1))
        if without is not None and begin <= without < end:
            score_NV[:, without - begin] = -torch.inf
        found_NK, place_NK = torch.topk(score_NV, min(k, end - begin), dim=1)
        best_NK, order_NK = torch.cat([best_NK, found_NK], 1).topk(min(k, word_NK.shape[1] + end - begin), dim=1)
        word_NK = torch.cat([word_NK, place_NK + begin], 1).gather(1, order_NK)
    return best_NK, word_NK, log_z_N
