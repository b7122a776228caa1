"""What the rest of the network asks of a body.

Bodies take plain sizes, and import PyTorch, one another and `bnce.kernels` alone: they work without the rest of bnce.

Legend: T time steps, B streams, C context words before the first position, L = C + T, E embedding, D last hidden layer;
W words and P states that a branch puts together to B pairs.
"""

from __future__ import annotations

from torch import Tensor, nn

State = tuple[Tensor, ...]


class Body(nn.Module):
    """Embedded words in, last hidden layer out; it never sees the vocabulary."""

    num_context = 0  # C: extra words that a chunk needs before its first position
    num_words: int | None = None  # that a position is predicted from; None: all before it
    context = 0  # words that a position attends to, itself among them
    branches = False  # whether it has a `branch` of its own
    output_size: int  # D

    def initial_state(self, num_streams: int) -> State:
        """Make the state that a text starts from; each part has the streams as its second dimension."""
        raise NotImplementedError

    def forward(self, embedded_LBE: Tensor, state: State, reset_LB: Tensor | None = None) -> tuple[Tensor, State]:
        """Map C + T embedded words to T hidden rows, and give the state after them, cut from the graph.

        Where `reset_LB` is true, a stream's text begins anew with that word, which is `</s>`: what follows is computed
        as if the initial state, and nothing else, came before it.
        """
        raise NotImplementedError

    def products_per_word(self, num_steps: int) -> float:
        """Count the multiply-adds of the matrix products that a word's forward pass through T steps needs."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.ndim == 2)

    def prepare_words(self, embedded_WE: Tensor) -> Tensor:
        """Compute of words what does not depend on states, for `branch`: once, however many states they follow."""
        return embedded_WE

    def branch(self, prepared_WE: Tensor, word_B: Tensor, state: State, parent_B: Tensor) -> tuple[Tensor, State]:
        """Run one step from W prepared words and P states into B pairs: hidden (B, D) and the state after each pair.

        That state may have other parts than `forward` gives: it is there to branch from.
        """
        raise NotImplementedError
