"""A network as everything that scores sees it: ids in, scores out. PyTorch or NumPy computes it.

Ids are NumPy arrays, and so are answers. Hidden rows and states are the network's own arrays, tensors or NumPy's:
who scores moves them about with `take` and `concatenate`, and never asks which of the two they are.

Legend: T time steps, B rows (texts side by side), C context words of an n-gram body, L = C + T, N positions, P rows of
the hidden layer, K words for each position, V vocabulary, D hidden, W different words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import END
from bnce.errors import UserError, argument

Array = Any
NetworkState = tuple[Array, ...]  # each part has the rows as its second dimension
Ints = NDArray[np.int64]
Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]
Mode = Literal["unnormalised", "normalised"]  # with the constant Z; with the softmax

# One block of scores: 2^22 numbers are 16 MB.
BLOCK_NUMBERS = 2**22
# Numbers in the states of texts side by side: a Transformer has some for every word of its context. 512 MiB.
STATE_NUMBERS = 2**27


@dataclass(frozen=True)
class Query:
    """What is asked at each position, beside the raw score of its word."""

    log_z: bool = False  # ln Z(context), which takes a pass over the vocabulary
    entropy: bool = False  # of the next word, in nats
    hidden: bool = False  # the last hidden layer


class Values(NamedTuple):
    """What was found at each position; all that is not None has the same length."""

    score_N: Floats
    log_z_N: Floats | None = None
    entropy_N: Floats | None = None
    hidden_ND: Floats | None = None

    def log_probs(self, log_z: float | None = None) -> Floats:
        """Compute ln p in float64: with a constant ln Z, or with ln Z(context) of each position (the softmax)."""
        constant: Any = self.log_z_N if log_z is None else log_z
        log_prob_N: Floats = self.score_N.astype(np.float64) - constant
        return log_prob_N

    def select(self, place: Any) -> Values:
        """Take some positions, by their places or as a slice."""
        return Values(*(None if part is None else part[place] for part in self))  # type: ignore[arg-type]


def join(parts: Sequence[Values], query: Query = Query()) -> Values:
    """Lay values one behind the other; those of a query where there are none."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        none = np.zeros(0)
        return Values(none, *(none if wanted else None for wanted in (query.log_z, query.entropy)))
    score_N, *others = zip(*parts, strict=True)
    return Values(np.concatenate(score_N), *(None if part[0] is None else np.concatenate(part) for part in others))


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
    fixed_steps: int | None = None  # T of every pass, which then takes resets at any step; None: any T, no resets
    prefers_tree: bool  # whether `branch` reads short texts faster, what they share once, than rows do

    @abstractmethod
    def initial_state(self, num_rows: int) -> NetworkState:
        """Make the state that a text starts from."""

    @abstractmethod
    def forward(self, ids_LB: Ints, state: NetworkState, reset_LB: Bools | None = None) -> tuple[Array, NetworkState]:
        """Read words: the last hidden layer (T, B, D) and the state after it. A text begins anew where it is reset."""

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
    def top_words(self, hidden_ND: Array, k: int, without: int | None = None) -> tuple[Floats, Ints, Floats]:
        """Find the words with the highest raw scores: scores and words (N, K), the highest first; ln Z(context) (N,).

        `without` is a word that must not be among them; it has its part in Z all the same.
        """

    def answer(self, hidden_PD: Array, word_N: Ints, query: Query, place_N: Ints | None = None) -> Values:
        """Answer for words, each after its row of the hidden layer, or after the row at its place."""
        return self.begin_answer(hidden_PD, word_N, query, place_N)()

    def begin_answer(
        self, hidden_PD: Array, word_N: Ints, query: Query, place_N: Ints | None = None
    ) -> Callable[[], Values]:
        """Begin to answer; call the result for the values. A GPU computes meanwhile."""
        hidden_ND = hidden_PD if place_N is None else self.take(hidden_PD, place_N)
        parts = [
            self.scores(hidden_ND, word_N[:, None])[:, 0],
            self.log_normaliser(hidden_PD) if query.log_z else None,
            self.entropy(hidden_PD) if query.entropy else None,
            hidden_PD if query.hidden else None,
        ]
        fetch = self.begin_fetch(parts)

        def values() -> Values:
            score_N, *others = fetch()
            if place_N is not None:
                others = [None if part is None else part[place_N] for part in others]
            return Values(score_N, *others)

        return values

    # Arrays are NumPy's, unless a network says otherwise.

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
        """Make an array of the network's own from one of the host's."""
        return numbers

    def numpy(self, array: Array) -> NDArray[Any]:
        """Give an array to the host."""
        return np.asarray(array)

    def begin_fetch(self, arrays: Sequence[Array | None]) -> Callable[[], list[Any]]:
        """Begin to give arrays to the host; call the result for them."""
        return lambda: list(arrays)

    def rows_at_once(self, most: int) -> int:
        """Say how many texts may go side by side, so that their states fit into memory."""
        per_row = sum(int(np.prod(part.shape)) for part in self.initial_state(1))
        return max(1, min(most, STATE_NUMBERS // max(1, per_row)))

    def width(self, num_rows: int) -> int:
        """Say how many rows a pass should have, those without a text counted."""
        return num_rows

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


@dataclass(eq=False)
class States:
    """B histories side by side: what the network needs to go on from each, and the hidden layer it has come to."""

    network: Network
    context_CB: Ints  # the last words that were read
    parts: NetworkState
    hidden_BD: Array
    known_log_z_B: Array | None = None

    def __len__(self) -> int:
        return len(self.hidden_BD)

    @property
    def log_normalisers(self) -> Array:
        """Values of ln Z(context), NaN where nobody has asked: one costs as much as hundreds of steps at V = 800K."""
        if self.known_log_z_B is None:
            self.known_log_z_B = self.network.array(np.full(len(self), np.nan, dtype=np.float32))
        return self.known_log_z_B

    def select(self, place_B: Ints) -> States:
        """Take some of the states, in any order, also repeatedly."""
        take, known = self.network.take, self.known_log_z_B
        return States(
            self.network,
            self.context_CB[:, place_B],
            tuple(take(part, place_B, 1) for part in self.parts),
            take(self.hidden_BD, place_B),
            None if known is None else take(known, place_B),
        )


class State(NamedTuple):
    """One history: a place among states that were computed together. It is never changed."""

    states: States
    place: int


def before_text(network: Network) -> States:
    """Give the one state before a text, in which nothing was read; a text begins with `</s>`, which comes next."""
    context_CB = np.full((network.num_context, 1), END, dtype=np.int64)
    hidden_BD = network.array(np.zeros((1, network.hidden_size), dtype=np.float32))
    return States(network, context_CB, network.initial_state(1), hidden_BD)


def gather(states: Sequence[State]) -> States:
    """Lay states side by side, in their order."""
    places: dict[States, list[int]] = {}
    for order, state in enumerate(states):
        places.setdefault(state.states, []).append(order)
    parts = []
    for source, orders in places.items():
        chosen = [states[order].place for order in orders]
        parts.append(source if chosen == list(range(len(source))) else source.select(np.array(chosen)))
    if len(parts) == 1:
        return parts[0]
    network = parts[0].network
    joined = States(
        network,
        np.concatenate([part.context_CB for part in parts], axis=1),
        tuple(network.concatenate(own, 1) for own in zip(*(part.parts for part in parts), strict=True)),
        network.concatenate([part.hidden_BD for part in parts]),
        network.concatenate([part.log_normalisers for part in parts]),
    )
    return joined.select(np.argsort([order for orders in places.values() for order in orders]))
