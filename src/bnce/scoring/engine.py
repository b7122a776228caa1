"""A network as scoring uses it: PyTorch computes a run's, ONNX Runtime an exported one's.

Words are NumPy arrays on the host. Hidden rows and states are the engine's own arrays, tensors or NumPy's: what scores
texts moves them about with `take`, `put` and `concatenate`, and never asks which of the two they are.

Legend: T time steps, B texts side by side, C context words of an n-gram body, L = C + T, N positions, K words for each,
V vocabulary, D hidden, W different words, P different states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.errors import UserError, argument

Array = Any
State = tuple[Array, ...]
Ints = NDArray[np.int64]
Floats = NDArray[np.floating[Any]]

# One block of scores: 2^22 numbers are 16 MB.
BLOCK_NUMBERS = 2**22
# Numbers in the states of texts side by side: a Transformer has some for every word of its context. 512 MiB.
STATE_NUMBERS = 2**27


class Engine(ABC):
    """Runs a network on one device; it holds nothing of any text."""

    name = "This model"  # in messages; where it has a path, that in quotes
    vocab_size: int
    num_context: int  # C
    num_words_seen: int | None  # that a word is predicted from; None: all before it
    log_z: float
    normalises: bool  # whether the constant Z may replace the softmax sum
    is_exact: bool  # whether scores are ln p already, because of the output layer
    branches: bool  # whether `branch` is faster than `run` of one step
    reads_trees: bool  # whether whole texts are read faster by `branch`, what they share once, than side by side
    attends = False  # whether hypotheses are read faster side by side than as a tree, which copies what words see
    loss_name: str
    device: str
    num_parallel: int  # sentences that go through the network side by side
    pass_words: int  # words in one pass

    @abstractmethod
    def initial_state(self, num_texts: int) -> State:
        """Make the state that a text starts from; each part has the texts as its second dimension."""

    @abstractmethod
    def run(self, word_LB: Ints, state: State) -> tuple[Array, State]:
        """Read words: the last hidden layer (T, B, D) and the state after it."""

    @abstractmethod
    def enter(self, word_W: Ints) -> Array:
        """Compute of words what does not depend on states, for `branch`."""

    @abstractmethod
    def branch(self, entered: Array, word_B: Ints, state: State, parent_B: Ints) -> tuple[Array, State]:
        """Run one step into pairs of words and states, which are given by their places: hidden (B, D), and states."""

    @abstractmethod
    def scores(self, hidden_ND: Array, words_NK: Ints) -> Array:
        """Compute the raw scores of K words for each position (N, K)."""

    @abstractmethod
    def all_scores(self, hidden_ND: Array) -> Array:
        """Compute the raw scores of every word for a few positions (N, V)."""

    @abstractmethod
    def log_normaliser(self, hidden_ND: Array) -> Array:
        """Compute ln Z(context) (N,), in bounded memory."""

    @abstractmethod
    def top_words(self, hidden_BD: Array, num_words: int, without: int | None = None) -> tuple[Floats, Ints, Floats]:
        """Find the words with the highest raw scores: scores and words (B, K), the highest first; ln Z(context) (B,).

        `without` is a word that must not be among them; it has its part in Z all the same.
        """

    @abstractmethod
    def entropy(self, hidden_ND: Array) -> NDArray[np.float64]:
        """Compute the entropy of the next word (N,), in nats."""

    # Arrays are NumPy's, unless an engine says otherwise.

    def take(self, array: Array, place_N: Ints, axis: int = 0) -> Array:
        """Take some places of an array, in any order, also repeatedly."""
        return np.take(array, place_N, axis)

    def put(self, array: Array, place_N: Ints, value_N: Array) -> None:
        """Write values to some places of an array."""
        array[place_N] = value_N

    def concatenate(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        """Lay arrays one behind the other."""
        return np.concatenate(list(arrays), axis)

    def array(self, numbers: NDArray[Any]) -> Array:
        """Make an array of the engine's own from one of the host's."""
        return numbers

    def numpy(self, array: Array) -> NDArray[Any]:
        """Give an array to the host."""
        return np.asarray(array)

    def check_ids(self, smallest: int, largest: int) -> None:
        """Refuse ids outside the vocabulary: a negative id would silently count from the end of a table."""
        if smallest < 0 or largest >= self.vocab_size:
            raise UserError(
                f"The word ids go from {smallest} to {largest}, but the vocabulary has ids from 0 to "
                f"{self.vocab_size - 1}."
            )

    def refuse_unnormalised(self) -> None:
        """Refuse unnormalised probabilities where nothing was learned or fitted that may replace the softmax sum."""
        if not self.normalises:
            raise UserError(
                f"{self.name} was trained with the loss {self.loss_name} and has no constant Z: "
                f"use normalised probabilities ({argument('normalised', True)}), calibrate the run ('bnce calibrate'), "
                f"or train with {argument('loss', 'bnce')}."
            )

    def num_side_by_side(self, most: int) -> int:
        """Say how many texts may go through the network side by side, so that their states fit into memory."""
        per_state = sum(int(np.prod(part.shape)) for part in self.initial_state(1))
        return max(1, min(most, STATE_NUMBERS // max(1, per_state)))


def engine_of(network: Any) -> Engine:
    """Give the engine of a network: itself, or PyTorch for a `LanguageModel`."""
    if isinstance(network, Engine):
        return network
    from bnce.scoring.torch_engine import TorchEngine

    return TorchEngine(network)
