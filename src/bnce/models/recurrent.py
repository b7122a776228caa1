"""Recurrent bodies: layers of RNN or LSTM, with or without the paper's ReLu bottleneck after the last.

From the second layer on, what a layer finds is added to what it read, so that more layers train as easily as one.

Legend: T time steps, B streams, E embedding, D last hidden layer, G gates, N layers; in a branch W words,
P states, B pairs of them, A of those at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bnce import kernels
from bnce.errors import unknown_name
from bnce.machine.precision import product_dtype
from bnce.models import stepwise
from bnce.models.body import Body, State
from bnce.models.dense import dense_relu
from bnce.registry import RecurrentConfig

# Pairs per state from which on a state is multiplied once, and not once for each pair.
SHARED_STATES = 1.1
# Pairs that go through a step together on a CPU: the gates of more do not stay in its cache, and need new memory.
PART_PAIRS = 256

CELLS: dict[str, type[nn.RNN | nn.LSTM]] = {"rnn": nn.RNN, "lstm": nn.LSTM}


def build(config: RecurrentConfig) -> Recurrent:
    """Build one from its settings: with a tanh RNN or an LSTM as its cell, with or without the bottleneck."""
    cell, bottleneck_size = config.name.removeprefix("relu-"), getattr(config, "bottleneck_size", None)
    return Recurrent(
        cell, config.embedding_size, config.hidden_size, bottleneck_size, config.dropout, config.num_layers
    )


class Recurrent(Body):
    """Recurrent layers over embedded words, then, if asked for, a narrower ReLu layer before the output."""

    branches = True

    def __init__(
        self,
        cell: str,
        embedding_size: int,
        hidden_size: int,
        bottleneck_size: int | None,
        dropout: float,
        num_layers: int = 1,
    ) -> None:
        super().__init__()
        if cell not in CELLS:
            raise unknown_name("recurrent cell", cell, CELLS)
        self.cell = CELLS[cell](embedding_size, hidden_size)
        # Not in one list with the first, whose weights have had their names since there was but one layer.
        self.upper = nn.ModuleList(CELLS[cell](hidden_size, hidden_size) for _ in range(num_layers - 1))
        self.bottleneck = None if bottleneck_size is None else nn.Linear(hidden_size, bottleneck_size)
        if self.bottleneck is not None:
            nn.init.kaiming_uniform_(self.bottleneck.weight, nonlinearity="relu")
            nn.init.zeros_(self.bottleneck.bias)
        self.dropout = nn.Dropout(dropout)
        self.output_size = bottleneck_size or hidden_size

    @property
    def layers(self) -> list[nn.RNN | nn.LSTM]:
        """All recurrent layers, the first first."""
        return [self.cell, *self.upper]

    def initial_state(self, num_streams: int) -> State:
        """Make the zero state that a text starts from."""
        like, N = self.cell.all_weights[0][0], 1 + len(self.upper)
        zeros = torch.zeros(N, num_streams, self.cell.hidden_size, dtype=like.dtype, device=like.device)
        return (zeros, zeros.clone()) if isinstance(self.cell, nn.LSTM) else (zeros,)

    def forward(self, embedded_TBE: Tensor, state: State, reset_TB: Tensor | None = None) -> tuple[Tensor, State]:
        """Run T steps from a state; the returned state is cut from the graph, which truncates back-propagation."""
        fast = kernels.choose("recurrence", embedded_TBE)
        if fast is None and stepwise.is_for(embedded_TBE, self.cell):
            fast = stepwise
        hidden_TBD, after = self._run(fast, self.cell, self.dropout(embedded_TBE), state, 0, reset_TB)
        lasts = [after]
        for number, layer in enumerate(self.layers[1:], start=1):
            found_TBD, after = self._run(fast, layer, self.dropout(hidden_TBD), state, number, reset_TB)
            hidden_TBD = hidden_TBD + found_TBD
            lasts.append(after)
        if self.bottleneck is not None:
            hidden_TBD = dense_relu(self.dropout(hidden_TBD), self.bottleneck.weight, self.bottleneck.bias)
        elif fast is not None:
            hidden_TBD = hidden_TBD[..., : self.output_size]
        return self.dropout(hidden_TBD), _join(lasts)

    def _run(
        self,
        kernel: ModuleType | None,
        layer: nn.RNN | nn.LSTM,
        input_TBE: Tensor,
        state: State,
        number: int,
        reset_TB: Tensor | None,
    ) -> tuple[Tensor, State]:
        """Run one layer from its part of the state (N, B, D), and give its own part after it (1, B, D)."""
        before = tuple(part[number : number + 1] for part in state)
        if kernel is not None:
            return _run_fast(kernel, layer, input_TBE, before, reset_TB)
        hidden_TBD, after = _run_cell(layer, input_TBE, before, reset_TB)
        return hidden_TBD, tuple(part.detach() for part in after)

    def prepare_words(self, embedded_WE: Tensor) -> Tensor:
        """Multiply words by the input weights."""
        return _input_gates(self.cell, embedded_WE)

    def branch(self, prepared_WG: Tensor, word_B: Tensor, state: State, parent_B: Tensor) -> tuple[Tensor, State]:
        """Run one step into pairs of words and states: each is multiplied once, not once per pair as in `forward`."""
        hidden_BD, after = _branch(self.cell, partial(_word_gates, prepared_WG, word_B), state, parent_B, 0)
        lasts = [after]
        for number, layer in enumerate(self.layers[1:], start=1):
            found_BD, after = _branch(layer, partial(_row_gates, layer, hidden_BD), state, parent_B, number)
            hidden_BD = hidden_BD + found_BD
            lasts.append(after)
        return hidden_BD if self.bottleneck is None else torch.relu(self.bottleneck(hidden_BD)), _join(lasts)


def _join(lasts: list[State]) -> State:
    """Put the layers' own parts (1, B, D) together as those of all (N, B, D)."""
    return lasts[0] if len(lasts) == 1 else tuple(torch.cat(parts) for parts in zip(*lasts, strict=True))


def _run_cell(
    layer: nn.RNN | nn.LSTM, input_TBE: Tensor, state: State, reset_TB: Tensor | None
) -> tuple[Tensor, State]:
    if reset_TB is not None:
        # Step by step, whether or not a stream is reset there: a captured step must not depend on its data.
        steps = []
        for input_BE, reset_B in zip(input_TBE, reset_TB, strict=True):
            state = tuple(part.masked_fill(reset_B.unsqueeze(1), 0.0) for part in state)
            hidden_1BD, state = _run_cell(layer, input_BE.unsqueeze(0), state, None)
            steps.append(hidden_1BD)
        return torch.cat(steps), state
    if isinstance(layer, nn.LSTM):
        hidden_TBD, after = layer(input_TBE, (state[0], state[1]))
        return hidden_TBD, after
    hidden_TBD, last = layer(input_TBE, state[0])
    return hidden_TBD, (last,)


def _run_fast(
    kernel: ModuleType, layer: nn.RNN | nn.LSTM, input_TBE: Tensor, state: State, reset_TB: Tensor | None
) -> tuple[Tensor, State]:
    """Compute the same in autocast's type; hidden rows get columns of zeros on the right."""
    weights, dtype = layer.all_weights[0], product_dtype(input_TBE)
    run = kernel.lstm if isinstance(layer, nn.LSTM) else kernel.rnn
    with torch.autocast(input_TBE.device.type, enabled=False):
        # A layer below has left columns of zeros, which are put there anew.
        input_TBE = input_TBE[..., : layer.input_size]
        wide_TBD, *last = run(input_TBE, *(part[0] for part in state), weights, dtype, reset_TB)
    return wide_TBD, tuple(part.unsqueeze(0) for part in last)


def _input_gates(layer: nn.RNN | nn.LSTM, input_BE: Tensor) -> Tensor:
    input_weight, _, *biases = layer.all_weights[0]
    return F.linear(input_BE, input_weight, biases[0] + biases[1])


def _word_gates(prepared_WG: Tensor, word_B: Tensor, own: slice) -> Tensor:
    return prepared_WG.index_select(0, word_B[own])


def _row_gates(layer: nn.RNN | nn.LSTM, input_BE: Tensor, own: slice) -> Tensor:
    return _input_gates(layer, input_BE[own])


def _branch(
    layer: nn.RNN | nn.LSTM, input_gates: Callable[[slice], Tensor], state: State, parent_B: Tensor, number: int
) -> tuple[Tensor, State]:
    """Run one step of a layer from what its input adds to the gates of some pairs, a part of the pairs at a time."""
    before, weight_DG, num_pairs = [part[number] for part in state], layer.all_weights[0][1].t(), len(parent_B)
    # Where nearly every state goes on by one word, to copy states is cheaper than to copy their products.
    is_shared = len(before[0]) * SHARED_STATES <= num_pairs
    shared_PG = before[0] @ weight_DG if is_shared else None
    after = [part.new_empty(num_pairs, part.shape[1]) for part in before]
    at_once = PART_PAIRS if parent_B.device.type == "cpu" else max(1, num_pairs)
    for begin in range(0, num_pairs, at_once):
        own = slice(begin, begin + at_once)
        sum_AG, parent_A = input_gates(own), parent_B[own]
        if shared_PG is None:
            sum_AG.addmm_(before[0].index_select(0, parent_A), weight_DG)
        else:
            sum_AG.add_(shared_PG.index_select(0, parent_A))
        memory = [part.index_select(0, parent_A) for part in before[1:]]
        _squash(sum_AG, memory, [part[own] for part in after])
    return after[0], tuple(part.unsqueeze(0) for part in after)


def _squash(sum_AG: Tensor, memory: Sequence[Tensor], after: Sequence[Tensor]) -> None:
    """Compute a cell's state into `after` from the sums of its gates, which are written over."""
    # All squashing by σ, which PyTorch computes several times as fast as tanh on a CPU: tanh(x) = 1 − 2·σ(−2x).
    if not memory:
        torch.mul(sum_AG.mul_(-2.0).sigmoid_(), -2.0, out=after[0]).add_(1.0)
        return
    hidden_AD, memory_AD = after
    input_gate, forget_gate, candidate, output_gate = sum_AG.chunk(4, dim=1)
    candidate.mul_(-2.0)
    sum_AG.sigmoid_()
    torch.addcmul(input_gate, input_gate, candidate, value=-2.0, out=memory_AD)
    memory_AD.addcmul_(memory[0], forget_gate)
    torch.addcmul(output_gate, output_gate, torch.mul(memory_AD, -2.0).sigmoid_(), value=-2.0, out=hidden_AD)
