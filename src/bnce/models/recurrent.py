"""Recurrent bodies: layers of RNN or LSTM, with or without the paper's ReLu bottleneck after the last.

From the second layer on, what a layer finds is added to what it read, so that more layers train as easily as one.

Legend: T time steps, B streams, E embedding, D last hidden layer, G gates, N layers; in a branch W words,
P states, B pairs of them, A of those at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bnce.kernels import usable
from bnce.models.body import Body, State

# Pairs per state from which on a state is multiplied once, and not once for each pair.
SHARED_STATES = 1.1
# Pairs that go through a step together on a CPU: the gates of more do not stay in its cache, and need new memory.
PART_PAIRS = 256


class Recurrent(Body):
    """Recurrent layers over embedded words, then, if asked for, a narrower ReLu layer before the output."""

    branches = True

    def __init__(
        self,
        cell: type[nn.RNN | nn.LSTM],
        embedding_size: int,
        hidden_size: int,
        bottleneck_size: int | None = None,
        num_layers: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.cell = cell(embedding_size, hidden_size)
        # Not in one list with the first, whose weights have had their names since there was but one layer.
        self.upper = nn.ModuleList(cell(hidden_size, hidden_size) for _ in range(num_layers - 1))
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
        hidden_TBD, after = run_layer(self.cell, self.dropout(embedded_TBE), _part(state, 0), reset_TB)
        lasts = [after]
        for number, layer in enumerate(self.layers[1:], start=1):
            found_TBD, after = run_layer(layer, self.dropout(hidden_TBD), _part(state, number), reset_TB)
            hidden_TBD = hidden_TBD + found_TBD
            lasts.append(after)
        if self.bottleneck is None:
            hidden_TBD = hidden_TBD[..., : self.output_size]
        else:
            hidden_TBD = dense_relu(self.dropout(hidden_TBD), self.bottleneck.weight, self.bottleneck.bias)
        return self.dropout(hidden_TBD), tuple(part.detach() for part in _join(lasts))

    def prepare_words(self, embedded_WE: Tensor) -> Tensor:
        """Multiply words by the input weights."""
        return _input_gates(self.cell, embedded_WE)

    def branch(self, prepared_WG: Tensor, word_B: Tensor, state: State, parent_B: Tensor) -> tuple[Tensor, State]:
        """Run one step into pairs of words and states: each is multiplied once, not once per pair as in `forward`."""
        hidden_BD, after = _branch(self.cell, partial(_word_gates, prepared_WG, word_B), _part(state, 0), parent_B)
        lasts = [after]
        for number, layer in enumerate(self.layers[1:], start=1):
            found_BD, after = _branch(layer, partial(_row_gates, layer, hidden_BD), _part(state, number), parent_B)
            hidden_BD = hidden_BD + found_BD
            lasts.append(after)
        return hidden_BD if self.bottleneck is None else torch.relu(self.bottleneck(hidden_BD)), _join(lasts)


rnn, lstm = partial(Recurrent, nn.RNN), partial(Recurrent, nn.LSTM)


def dense_relu(input: Tensor, weight_DE: Tensor, bias_D: Tensor) -> Tensor:
    """Compute max(0, x·W + b) for rows of any shape."""
    if usable(input, autocast=True):
        from bnce.kernels.dense import dense_relu as fast

        return fast(input, weight_DE, bias_D)
    return torch.relu(F.linear(input, weight_DE, bias_D))


def _part(state: State, number: int) -> State:
    """Take a layer's own part (1, B, D) of the state of all (N, B, D)."""
    return tuple(part[number : number + 1] for part in state)


def _join(lasts: list[State]) -> State:
    """Put the layers' own parts (1, B, D) together as those of all (N, B, D)."""
    return lasts[0] if len(lasts) == 1 else tuple(torch.cat(parts) for parts in zip(*lasts, strict=True))


def run_layer(
    layer: nn.RNN | nn.LSTM, input_TBE: Tensor, state: State, reset_TB: Tensor | None = None
) -> tuple[Tensor, State]:
    """Run T steps of a layer from its state; on a GPU, hidden rows may have columns of zeros on the right."""
    if usable(input_TBE, autocast=True):
        from bnce.kernels.recurrence import run_layer as fast

        # A layer below has left columns of zeros, which are put there anew.
        return fast(layer.all_weights[0], input_TBE[..., : layer.input_size], state, reset_TB)
    if reset_TB is None:
        return _run_cell(layer, input_TBE, state)
    # Step by step, whether or not a stream is reset there: a captured step must not depend on its data.
    steps = []
    for input_BE, reset_B in zip(input_TBE, reset_TB, strict=True):
        state = tuple(part.masked_fill(reset_B.unsqueeze(1), 0.0) for part in state)
        hidden_1BD, state = _run_cell(layer, input_BE.unsqueeze(0), state)
        steps.append(hidden_1BD)
    return torch.cat(steps), state


def _run_cell(layer: nn.RNN | nn.LSTM, input_TBE: Tensor, state: State) -> tuple[Tensor, State]:
    if isinstance(layer, nn.LSTM):
        hidden_TBD, after = layer(input_TBE, (state[0], state[1]))
        return hidden_TBD, after
    hidden_TBD, last = layer(input_TBE, state[0])
    return hidden_TBD, (last,)


def _input_gates(layer: nn.RNN | nn.LSTM, input_BE: Tensor) -> Tensor:
    input_weight, _, *biases = layer.all_weights[0]
    return F.linear(input_BE, input_weight, biases[0] + biases[1])


def _word_gates(prepared_WG: Tensor, word_B: Tensor, own: slice) -> Tensor:
    return prepared_WG.index_select(0, word_B[own])


def _row_gates(layer: nn.RNN | nn.LSTM, input_BE: Tensor, own: slice) -> Tensor:
    return _input_gates(layer, input_BE[own])


def _branch(
    layer: nn.RNN | nn.LSTM, input_gates: Callable[[slice], Tensor], state: State, parent_B: Tensor
) -> tuple[Tensor, State]:
    """Run one step of a layer from what its input adds to the gates of some pairs, a part of the pairs at a time."""
    before, weight_DG, num_pairs = [part[0] for part in state], layer.all_weights[0][1].t(), len(parent_B)
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
