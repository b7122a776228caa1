"""A network as everything that scores sees it: ids in, scores out. PyTorch or NumPy computes it.

Ids are NumPy arrays, and so are answers. Hidden rows and states are the network's own arrays, tensors or NumPy's:
who scores moves them about with `take` and `concatenate`, and never asks which of the two they are.

Legend: T time steps, B rows (texts side by side), C context words of an n-gram body, L = C + T, N positions, P rows of
the hidden layer, K words for each position, V vocabulary, D hidden, W different words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.errors import UserError, argument

Array = Any
NetworkState = tuple[Array, ...]  # each part has the rows as its second dimension
Ints = NDArray[np.int64]
Floats = NDArray[np.floating[Any]]
Mode = Literal["unnormalised", "normalised"]  # with the constant Z; with the softmax

# The scores of all words that are there at a time: 2^24 numbers are 64 MB.
BLOCK_NUMBERS = 2**24
# Numbers in the states of texts side by side: a Transformer has some for every word of its context. 512 MiB.
STATE_NUMBERS = 2**27


@dataclass(frozen=True)
class Query:
    """What is asked at each position, beside the raw score of its word."""

    log_z: bool = False  # ln Z(context), which takes a pass over the vocabulary
    entropy: bool = False  # of the next word, in nats


class Values(NamedTuple):
    """What was found at each position."""

    score_N: Floats
    log_z_N: Floats | None = None
    entropy_N: Floats | None = None

    @classmethod
    def room(cls, num_positions: int, query: Query) -> Values:
        """Make room for what will be found: in float64, in which what is made of scores is computed."""
        wanted = (True, query.log_z, query.entropy)
        return cls(*(np.zeros(num_positions) if one else None for one in wanted))  # type: ignore[arg-type]

    def put(self, place_N: Ints, values: Values) -> None:
        """Write what was found to its places."""
        for whole_N, part_N in zip(self, values, strict=True):
            if whole_N is not None:
                whole_N[place_N] = part_N

    def select(self, place_N: Ints) -> Values:
        """Take what was found at some places, also repeatedly."""
        return Values(*(None if part_N is None else part_N[place_N] for part_N in self))  # type: ignore[arg-type]

    def log_probs(self, log_z: float | None = None) -> NDArray[np.float64]:
        """Compute ln p: with a constant ln Z, or with ln Z(context) of each position (the softmax)."""
        constant: Any = self.log_z_N if log_z is None else log_z
        log_prob_N: NDArray[np.float64] = self.score_N - constant
        return log_prob_N


class Network(ABC):
    """Computes on one device; it holds nothing of any text."""

    name = "This model"  # in messages; where it has a path, that in quotes
    vocab_size: int
    hidden_size: int  # D
    num_context: int  # C
    num_words_seen: int | None  # that a word is predicted from; None: all before it
    log_z: float  # the constant ln Z
    normalises: bool  # whether the constant Z may replace the softmax sum
    is_exact: bool  # whether scores are ln p already, because of the output layer
    loss_name: str
    device: str
    max_rows: int  # texts side by side
    max_positions: int  # in one pass, which bounds its memory
    min_steps: int  # of a pass, unless all texts end before: shorter ones cost more calls than their empty places do
    prefers_tree: bool  # whether `branch` reads short texts faster, what they share once, than rows do

    @abstractmethod
    def initial_state(self, num_rows: int) -> NetworkState:
        """Make the state that a text starts from."""

    @abstractmethod
    def forward(self, ids_LB: Ints, state: NetworkState) -> tuple[Array, NetworkState]:
        """Read words: the last hidden layer (T, B, D) and the state after it."""

    @abstractmethod
    def enter(self, word_W: Ints) -> Array:
        """Compute of words what does not depend on states, for `branch`; only where a tree is preferred."""

    @abstractmethod
    def branch(self, entered: Array, word_B: Ints, state: NetworkState, parent_B: Ints) -> tuple[Array, NetworkState]:
        """Run one step into pairs of entered words and states, which are given by their places: hidden (B, D)."""

    @abstractmethod
    def scores(self, hidden_ND: Array, words_NK: Ints) -> Array:
        """Compute the raw scores of K words for each position (N, K), from the rows of these words alone."""

    @abstractmethod
    def all_scores(self, hidden_ND: Array) -> Array:
        """Compute the raw scores of every word for a few positions (N, V)."""

    @abstractmethod
    def log_normaliser(self, hidden_ND: Array) -> Array:
        """Compute ln Z(context) (N,), in bounded memory."""

    @abstractmethod
    def entropy(self, hidden_ND: Array) -> Array:
        """Compute the entropy of the next word (N,), in nats."""

    @abstractmethod
    def top_words(self, hidden_ND: Array, k: int) -> tuple[Floats, Ints, Floats]:
        """Find the words of the highest raw scores: scores and words (N, K), the highest first; ln Z(context) (N,)."""

    def answer(self, hidden_PD: Array, word_N: Ints, query: Query, place_N: Ints | None = None) -> Values:
        """Answer for words, each after its row of the hidden layer, or after the row at its place."""
        place: Any = slice(None) if place_N is None else place_N
        hidden_ND = hidden_PD if place_N is None else self.take(hidden_PD, place_N)
        return Values(
            self.numpy(self.scores(hidden_ND, word_N[:, None]))[:, 0],
            self.numpy(self.log_normaliser(hidden_PD))[place] if query.log_z else None,
            self.numpy(self.entropy(hidden_PD))[place] if query.entropy else None,
        )

    def row_blocks(self, hidden_ND: Array) -> Iterator[Array]:
        """Give a few positions at a time, such that their scores of all words fit into memory."""
        num_rows = max(1, BLOCK_NUMBERS // self.vocab_size)
        for begin in range(0, len(hidden_ND), num_rows):
            yield hidden_ND[begin : begin + num_rows]

    # Arrays are NumPy's, unless a network says otherwise.

    def take(self, array: Array, place_N: Ints, axis: int = 0) -> Array:
        """Take some places of an array, in any order, also repeatedly."""
        return np.take(array, place_N, axis)

    def concatenate(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        """Lay arrays one behind the other."""
        return np.concatenate(list(arrays), axis)

    def array(self, numbers: NDArray[Any]) -> Array:
        """Make an array of the network's own from one of the host's."""
        return numbers

    def numpy(self, array: Array) -> NDArray[Any]:
        """Give an array to the host."""
        return np.asarray(array)

    def rows_at_once(self, most: int) -> int:
        """Say how many texts may go side by side, so that their states fit into memory."""
        per_row = sum(int(np.prod(part.shape)) for part in self.initial_state(1))
        return max(1, min(most, STATE_NUMBERS // max(1, per_row)))

    def check_ids(self, word_N: Ints) -> None:
        """Refuse ids outside the vocabulary: a negative id would silently count from the end of a table."""
        smallest, largest = int(word_N.min(initial=0)), int(word_N.max(initial=0))
        if smallest < 0 or largest >= self.vocab_size:
            raise UserError(
                f"The word ids go from {smallest} to {largest}, but the vocabulary has ids from 0 to "
                f"{self.vocab_size - 1}."
            )

    def choose_mode(self, mode: Mode | None = None) -> Mode:
        """Choose how probabilities are had: with the constant Z where there is one, unless it is said.

        The constant is refused where nothing was learned or fitted that may replace the softmax sum.
        """
        if mode == "unnormalised" and not self.normalises:
            raise UserError(
                f"{self.name} was trained with the loss {self.loss_name} and has no constant Z: use normalised "
                f"probabilities ({argument('mode', 'normalised')}), calibrate the run ('bnce calibrate'), or train "
                f"with {argument('loss', 'bnce')}."
            )
        return mode or ("unnormalised" if self.normalises else "normalised")
