"""Recurrent bodies: RNN and LSTM, with or without the paper's ReLu bottleneck.

Legend: T time steps, B streams, E embedding, D last hidden layer, G gates.
"""

from __future__ import annotations

from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bnce import kernels
from bnce.config import ModelConfig
from bnce.errors import unknown_name
from bnce.machine.precision import product_dtype
from bnce.models.body import Body, State
from bnce.models.dense import dense_relu

CELLS: dict[str, type[nn.RNN | nn.LSTM]] = {"rnn": nn.RNN, "lstm": nn.LSTM}


def build(config: ModelConfig, *, cell: str, has_bottleneck: bool) -> Recurrent:
    """Build one from its settings: with a tanh RNN or an LSTM as its cell, with or without the bottleneck."""
    bottleneck_size = config.bottleneck_size if has_bottleneck else None
    return Recurrent(cell, config.embedding_size, config.hidden_size, bottleneck_size, config.dropout)


class Recurrent(Body):
    """One recurrent layer over embedded words, then, if asked for, a narrower ReLu layer before the output."""

    def __init__(
        self, cell: str, embedding_size: int, hidden_size: int, bottleneck_size: int | None, dropout: float
    ) -> None:
        super().__init__()
        if cell not in CELLS:
            raise unknown_name("recurrent cell", cell, CELLS)
        self.cell = CELLS[cell](embedding_size, hidden_size)
        self.bottleneck = None if bottleneck_size is None else nn.Linear(hidden_size, bottleneck_size)
        if self.bottleneck is not None:
            nn.init.kaiming_uniform_(self.bottleneck.weight, nonlinearity="relu")
            nn.init.zeros_(self.bottleneck.bias)
        self.dropout = nn.Dropout(dropout)
        self.output_size = bottleneck_size or hidden_size

    def initial_state(self, num_streams: int) -> State:
        """Make the zero state that a text starts from."""
        like = self.cell.all_weights[0][0]
        zeros = torch.zeros(1, num_streams, self.cell.hidden_size, dtype=like.dtype, device=like.device)
        return (zeros, zeros.clone()) if isinstance(self.cell, nn.LSTM) else (zeros,)

    def forward(self, embedded_TBE: Tensor, state: State) -> tuple[Tensor, State]:
        """Run T steps from a state; the returned state is cut from the graph, which truncates back-propagation."""
        fast = kernels.choose("recurrence", embedded_TBE)
        embedded_TBE = self.dropout(embedded_TBE)
        hidden_TBD, after = (
            self._run_cell(embedded_TBE, state) if fast is None else self._run_fast(fast, embedded_TBE, state)
        )
        if self.bottleneck is not None:
            hidden_TBD = dense_relu(self.dropout(hidden_TBD), self.bottleneck.weight, self.bottleneck.bias)
        return self.dropout(hidden_TBD), after

    def _run_cell(self, embedded_TBE: Tensor, state: State) -> tuple[Tensor, State]:
        after: State
        if isinstance(self.cell, nn.LSTM):
            hidden_TBD, after = self.cell(embedded_TBE, (state[0], state[1]))
        else:
            hidden_TBD, last = self.cell(embedded_TBE, state[0])
            after = (last,)
        return hidden_TBD, tuple(part.detach() for part in after)

    def _run_fast(self, kernel: ModuleType, embedded_TBE: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute the same in autocast's type; hidden rows get columns of zeros for a dense layer that follows."""
        weights, dtype = self.cell.all_weights[0], product_dtype(embedded_TBE)
        run = kernel.lstm if isinstance(self.cell, nn.LSTM) else kernel.rnn
        with torch.autocast(embedded_TBE.device.type, enabled=False):
            wide_TBD, *last = run(embedded_TBE, *(part[0] for part in state), weights, dtype)
        hidden_TBD = wide_TBD[..., : self.output_size] if self.bottleneck is None else wide_TBD
        return hidden_TBD, tuple(part.unsqueeze(0) for part in last)

    def branch(self, embedded_WE: Tensor, word_B: Tensor, state: State, parent_B: Tensor) -> tuple[Tensor, State]:
        """Run one step from W words and P states into B pairs of them: hidden (B, D) and the state after each pair.

        Each word and each state is multiplied once, not once per pair as in `forward`.
        """
        input_weight, state_weight, *biases = self.cell.all_weights[0]
        input_WG = F.linear(embedded_WE, input_weight, biases[0] + biases[1])
        state_PG = F.linear(state[0][0], state_weight)
        sum_BG = input_WG.index_select(0, word_B).add_(state_PG.index_select(0, parent_B))
        after: State
        if isinstance(self.cell, nn.LSTM):
            input_gate, forget_gate, candidate, output_gate = sum_BG.chunk(4, dim=1)
            memory_BD = state[1][0].index_select(0, parent_B).mul_(forget_gate.sigmoid_())
            memory_BD.addcmul_(input_gate.sigmoid_(), candidate.tanh_())
            hidden_BD = memory_BD.tanh().mul_(output_gate.sigmoid_())
            after = (hidden_BD.unsqueeze(0), memory_BD.unsqueeze(0))
        else:
            hidden_BD = sum_BG.tanh_()
            after = (hidden_BD.unsqueeze(0),)
        return hidden_BD if self.bottleneck is None else torch.relu(self.bottleneck(hidden_BD)), after
