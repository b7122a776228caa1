"""The n-gram feed-forward body: the last n − 1 words side by side, through two ReLu layers.

Legend: T time steps, B streams, C context words before the first position, E embedding, D last hidden layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bnce.models.body import Body, State
from bnce.models.recurrent import dense_relu


class FeedForward(Body):
    """A network that sees order − 1 words and no further."""

    num_words: int

    def __init__(
        self, embedding_size: int, hidden_size: int, bottleneck_size: int, order: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.num_words = order - 1
        self.num_context = self.num_words - 1
        self.hidden = nn.Linear(self.num_words * embedding_size, hidden_size)
        self.bottleneck = nn.Linear(hidden_size, bottleneck_size)
        for layer in (self.hidden, self.bottleneck):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
        self.dropout = nn.Dropout(dropout)
        self.output_size = bottleneck_size

    def initial_state(self, num_streams: int) -> State:
        """Make the empty state: chunks bring their context along."""
        return ()

    def forward(self, embedded_LBE: Tensor, state: State, reset_LB: Tensor | None = None) -> tuple[Tensor, State]:
        """Map C + T embedded words to T hidden rows."""
        num_steps = embedded_LBE.shape[0] - self.num_context
        if reset_LB is None:
            windows = [embedded_LBE[offset : offset + num_steps] for offset in range(self.num_words)]
        else:
            windows = self._windows(embedded_LBE, reset_LB)
        hidden = self.dropout(torch.cat(windows, dim=2))
        for layer in (self.hidden, self.bottleneck):
            hidden = self.dropout(dense_relu(hidden, layer.weight, layer.bias))
        return hidden, state

    def _windows(self, embedded_LBE: Tensor, reset_LB: Tensor) -> list[Tensor]:
        """Give each position its words, the oldest first; `</s>` at a reset takes the place of those before it."""
        L, C = len(embedded_LBE), self.num_context
        windows, is_begun_TB = [embedded_LBE[C:]], reset_LB[C:]
        for back in range(1, self.num_words):
            here = slice(C - back, L - back)
            windows.append(torch.where(is_begun_TB.unsqueeze(2), windows[-1], embedded_LBE[here]))
            is_begun_TB = is_begun_TB | reset_LB[here]
        return windows[::-1]
