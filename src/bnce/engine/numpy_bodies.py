"""The bodies in NumPy, for runs that are scored without PyTorch: embedded words in, last hidden layer out.

Legend: T time steps, B rows, C context words before the first position, L = C + T, E embedding, D hidden, G gates, W
different words, P states, A pairs of word and state; in a Transformer L layers, W words in the state, S words with
keys, H heads, K = D / H.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.engine.network import Floats, Ints

Rows = Callable[[Ints], Floats]  # the embedded words of some ids
Weights = Mapping[str, Floats]
State = tuple[Floats, ...]

# Pairs that go through a step together: the gates of more do not stay in a CPU's cache, and need new memory.
PART_PAIRS = 256
# Pairs per state from which on a state is multiplied once, and not once for each pair.
SHARED_STATES = 1.1
LONGEST_PASS = 256  # words of a text that a Transformer reads in one pass, or as many as the context has
SLOWEST = 10_000.0  # words of the slowest rotation, divided by 2π


class Body(ABC):
    """What a network asks of a body; weights are named as in a run's model file."""

    num_context = 0  # C
    num_words_seen: int | None = None
    branches = False

    @abstractmethod
    def initial_state(self, num_rows: int) -> State:
        """Make the state that a text starts from."""

    @abstractmethod
    def forward(self, ids_LB: Ints, embed: Rows, state: State) -> tuple[Floats, State]:
        """Read words: the last hidden layer (T, B, D) and the state after it."""


class FeedForward(Body):
    """A network that sees order − 1 words."""

    def __init__(self, settings: Any, weights: Weights) -> None:
        self.num_words_seen = settings.order - 1
        self.num_context = settings.order - 2
        self._layers = [(weights[f"{name}.weight"].T, weights[f"{name}.bias"]) for name in ("hidden", "bottleneck")]

    def initial_state(self, num_rows: int) -> State:
        """Make the empty state: passes bring their context along."""
        return ()

    def forward(self, ids_LB: Ints, embed: Rows, state: State) -> tuple[Floats, State]:
        """Map C + T words to T hidden rows."""
        L, B = ids_LB.shape
        T = L - self.num_context
        embedded_LBE = embed(ids_LB.ravel()).reshape(L, B, -1)
        windows = [embedded_LBE[offset : offset + T] for offset in range(self.num_context + 1)]
        hidden_ND = np.concatenate(windows, axis=2).reshape(T * B, -1)
        for weight_ED, bias_D in self._layers:
            hidden_ND = hidden_ND @ weight_ED
            hidden_ND += bias_D
            np.maximum(hidden_ND, 0, out=hidden_ND)
        return hidden_ND.reshape(T, B, -1), state


class Recurrent(Body):
    """Layers of RNN or LSTM, then, if it has one, a narrower ReLu layer."""

    branches = True

    def __init__(self, settings: Any, weights: Weights) -> None:
        names = ["cell", *(f"upper.{number}" for number in range(settings.num_layers - 1))]
        self._is_lstm = settings.options["cell"] == "lstm"
        self._layers = [self._read_layer(weights, name) for name in names]
        self._neck: tuple[Floats, Floats] | None = None
        if "bottleneck.weight" in weights:
            self._neck = weights["bottleneck.weight"].T, weights["bottleneck.bias"]

    def _read_layer(self, weights: Weights, name: str) -> tuple[Floats, Floats, Floats]:
        """Give weights of input and state (D, G) and the bias (G,), such that σ is 1 / (1 + exp(gates)).

        tanh(x) is 2σ(2x) − 1. Signs and factors of two are in the weights, where they cost nothing and round nothing.
        """
        size = weights[f"{name}.weight_hh_l0"].shape[1]
        factor_G = np.full((4 if self._is_lstm else 1) * size, -1, dtype=np.float32)
        factor_G[2 * size : 3 * size] = -2
        if not self._is_lstm:
            factor_G[:] = -2
        parts = [(weights[f"{name}.weight_{part}_l0"] * factor_G[:, None]).T.copy() for part in ("ih", "hh")]
        bias_G = (weights[f"{name}.bias_ih_l0"] + weights[f"{name}.bias_hh_l0"]) * factor_G
        return parts[0], parts[1], bias_G

    def initial_state(self, num_rows: int) -> State:
        """Make the zero state that a text starts from."""
        zeros = np.zeros((len(self._layers), num_rows, len(self._layers[0][1])), dtype=np.float32)
        return (zeros, zeros.copy()) if self._is_lstm else (zeros,)

    def enter(self, embedded_WE: Floats) -> Floats:
        """Multiply words by the input weights."""
        return _gates(embedded_WE, self._layers[0])

    def forward(self, ids_LB: Ints, embed: Rows, state: State) -> tuple[Floats, State]:
        """Read words; of each different one the product with the input weights is computed once."""
        T, B = ids_LB.shape
        word_W, place_N = np.unique(ids_LB, return_inverse=True)
        place_TB, entered_WG = place_N.reshape(T, B), self.enter(embed(word_W))
        hidden_TBD: Floats = np.empty(0, dtype=np.float32)
        lasts: list[State] = []
        for number, layer in enumerate(self._layers):
            gates_TBG = None if number == 0 else _gates(hidden_TBD.reshape(T * B, -1), layer).reshape(T, B, -1)
            now = tuple(part[number] for part in state)
            found_TBD = np.empty((T, B, len(layer[1])), dtype=np.float32)
            for step in range(T):
                sum_BG = now[0] @ layer[1]
                sum_BG += entered_WG[place_TB[step]] if gates_TBG is None else gates_TBG[step]
                now = self._squash(sum_BG, now[1:])
                found_TBD[step] = now[0]
            hidden_TBD = found_TBD if number == 0 else hidden_TBD + found_TBD
            lasts.append(now)
        return self._narrow(hidden_TBD), _join(lasts)

    def branch(self, entered_WG: Floats, word_A: Ints, state: State, parent_A: Ints) -> tuple[Floats, State]:
        """Run one step into pairs of words and states; each is multiplied once, not once per pair."""
        hidden_AD: Floats = np.empty(0, dtype=np.float32)
        lasts: list[State] = []
        for number, layer in enumerate(self._layers):
            before = tuple(part[number] for part in state)
            # Where nearly every state goes on by one word, to copy states is cheaper than to copy their products.
            shared_PG = before[0] @ layer[1] if len(before[0]) * SHARED_STATES <= len(parent_A) else None
            after = tuple(np.empty((len(parent_A), part.shape[1]), dtype=np.float32) for part in before)
            for begin in range(0, len(parent_A), PART_PAIRS):
                own = slice(begin, begin + PART_PAIRS)
                sum_AG = entered_WG[word_A[own]] if number == 0 else _gates(hidden_AD[own], layer)
                parent = parent_A[own]
                sum_AG += before[0][parent] @ layer[1] if shared_PG is None else shared_PG[parent]
                for whole, part in zip(after, self._squash(sum_AG, [one[parent] for one in before[1:]]), strict=True):
                    whole[own] = part
            hidden_AD = after[0] if number == 0 else hidden_AD + after[0]
            lasts.append(after)
        return self._narrow(hidden_AD), _join(lasts)

    def _squash(self, sum_BG: Floats, memory: Any) -> State:
        """Compute a cell's state from the sums of its gates, which are written over."""
        _sigmoid(sum_BG)
        if not self._is_lstm:
            return (_as_tanh(sum_BG),)
        D = sum_BG.shape[1] // 4
        input_gate, forget_gate, candidate, output_gate = (sum_BG[:, part * D : part * D + D] for part in range(4))
        memory_BD = forget_gate * memory[0]
        candidate = _as_tanh(candidate)
        candidate *= input_gate
        memory_BD += candidate
        hidden_BD = memory_BD * np.float32(-2)
        _sigmoid(hidden_BD)
        _as_tanh(hidden_BD)
        hidden_BD *= output_gate
        return hidden_BD, memory_BD

    def _narrow(self, hidden: Floats) -> Floats:
        if self._neck is None:
            return hidden
        narrow = hidden @ self._neck[0]
        narrow += self._neck[1]
        return np.maximum(narrow, 0, out=narrow)


def _gates(input_ND: Floats, layer: tuple[Floats, Floats, Floats]) -> Floats:
    gates_NG: Floats = input_ND @ layer[0]
    gates_NG += layer[2]
    return gates_NG


def _sigmoid(negative: Floats) -> None:
    """Compute σ(x) of −x in place."""
    np.exp(negative, out=negative)
    negative += 1
    np.reciprocal(negative, out=negative)


def _as_tanh(sigmoid: Floats) -> Floats:
    """Turn σ(2x) into tanh(x) in place."""
    sigmoid *= 2
    sigmoid -= 1
    return sigmoid


def _join(lasts: list[State]) -> State:
    """Put the layers' own states (B, D) together as those of all."""
    return tuple(parts[0][None] if len(parts) == 1 else np.stack(parts) for parts in zip(*lasts, strict=True))


class Transformer(Body):
    """Layers of attention and a wide squared ReLu; the state has keys and values of the last words of every row."""

    def __init__(self, settings: Any, weights: Weights) -> None:
        self._num_heads, self._context = settings.num_heads, settings.context
        self.num_words_seen = settings.num_layers * (settings.context - 1) + 1
        self._enter = weights["enter.weight"].T if "enter.weight" in weights else None
        parts = ("query_key_value", "found", "up", "down")
        self._blocks = [
            [weights[f"blocks.{number}.{part}.weight"].T for part in parts] for number in range(settings.num_layers)
        ]
        self._size = len(self._blocks[0][0])
        K = self._size // self._num_heads
        self._speed = SLOWEST ** -(np.arange(0, K - 1, 2, dtype=np.float32) / np.float32(K))

    def initial_state(self, num_rows: int) -> State:
        """Make room for the words before a text, of which there are none."""
        shape = len(self._blocks), num_rows, self._context, self._size
        return _zeros(shape), _zeros(shape), _zeros((1, num_rows))

    def forward(self, ids_LB: Ints, embed: Rows, state: State) -> tuple[Floats, State]:
        """Read words after those of the state; of a long text a part at a time, since pairs of words need room."""
        parts, longest = [], max(self._context, LONGEST_PASS)
        for begin in range(0, len(ids_LB), longest):
            part_TBD, state = self._pass(ids_LB[begin : begin + longest], embed, state)
            parts.append(part_TBD)
        return parts[0] if len(parts) == 1 else np.concatenate(parts), state

    def _pass(self, ids_TB: Ints, embed: Rows, state: State) -> tuple[Floats, State]:
        keys_LBWD, values_LBWD, known_1B = state
        W, (T, B) = self._context, ids_TB.shape
        stream_BTD = embed(ids_TB.T.ravel()).reshape(B, T, -1)
        stream_BTD = _normed(stream_BTD if self._enter is None else stream_BTD @ self._enter)
        # Only words that are there are gone through: a text of ten words need not attend to a hundred.
        num_before = int(known_1B.max())
        angle = np.outer(np.arange(num_before + T, dtype=np.float32), self._speed)[:, None]
        turn = np.cos(angle), np.sin(angle)
        place_S = np.arange(num_before + T)
        place_T1 = place_S[num_before:, None]
        is_seen_TS = (place_S <= place_T1) & (place_S > place_T1 - W)
        is_known_BS = place_S >= num_before - known_1B[0][:, None]
        unseen = np.where(is_seen_TS & is_known_BS[:, None], np.float32(0), np.float32(-1e30))[:, None]
        after = _zeros(keys_LBWD.shape), _zeros(values_LBWD.shape)
        for number, block in enumerate(self._blocks):
            before = keys_LBWD[number, :, W - num_before :], values_LBWD[number, :, W - num_before :]
            stream_BTD, *found = self._run_block(block, stream_BTD, before, unseen, turn)
            for kept_LBWD, part_BSD in zip(after, found, strict=True):
                last_BSD = part_BSD[:, -W:]
                kept_LBWD[number, :, W - last_BSD.shape[1] :] = last_BSD
        return _normed(stream_BTD).swapaxes(0, 1), (*after, np.minimum(known_1B + np.float32(T), W))

    def _run_block(
        self, block: list[Floats], stream_BTD: Floats, before: State, unseen: Floats, turn: tuple[Floats, Floats]
    ) -> tuple[Floats, Floats, Floats]:
        """Run a layer; give its stream, and the keys and values of all words."""
        query_key_value, found, up, down = block
        (B, T, D), H, num_before = stream_BTD.shape, self._num_heads, before[0].shape[1]
        query, key, value = (_normed(stream_BTD) @ query_key_value).reshape(B, T, 3, H, -1).transpose(2, 0, 1, 3, 4)
        # Keys are kept as they are before they are turned: it is the distance between words that counts.
        key_BSD = np.concatenate([before[0], _normed(key).reshape(B, T, D)], 1)
        value_BSD = np.concatenate([before[1], value.reshape(B, T, D)], 1)
        query_BHTK = _rotate(_normed(query), turn[0][num_before:], turn[1][num_before:]).transpose(0, 2, 1, 3)
        key_BHKS = _rotate(key_BSD.reshape(B, -1, H, D // H), *turn).transpose(0, 2, 3, 1)
        weight_BHTS = query_BHTK @ key_BHKS
        weight_BHTS *= np.float32(1 / math.sqrt(D // H))
        weight_BHTS += unseen
        weight_BHTS -= weight_BHTS.max(-1, keepdims=True)
        np.exp(weight_BHTS, out=weight_BHTS)
        weight_BHTS /= weight_BHTS.sum(-1, keepdims=True)
        found_BHTK = weight_BHTS @ value_BSD.reshape(B, -1, H, D // H).transpose(0, 2, 1, 3)
        stream_BTD = stream_BTD + found_BHTK.transpose(0, 2, 1, 3).reshape(B, T, D) @ found
        wide = _normed(stream_BTD) @ up
        np.maximum(wide, 0, out=wide)
        wide *= wide
        stream_BTD += wide @ down
        return stream_BTD, key_BSD, value_BSD


def _zeros(shape: tuple[int, ...]) -> Floats:
    """Make zeros in memory that is not touched before it is used: of short texts little of it is."""
    return np.zeros(shape, dtype=np.float32)


def _normed(part: Floats) -> Floats:
    square: NDArray[Any] = np.einsum("...d,...d->...", part, part)[..., None] / np.float32(part.shape[-1])
    normed: Floats = part / np.sqrt(square + np.finfo(np.float32).eps)
    return normed


def _rotate(part_BTHK: Floats, cosine: Floats, sine: Floats) -> Floats:
    """Turn pairs of numbers by the angles of their place, so that products depend on distances alone."""
    half = cosine.shape[-1]
    first, second = part_BTHK[..., :half], part_BTHK[..., half : 2 * half]
    turned = np.empty_like(part_BTHK)
    turned[..., :half] = first * cosine - second * sine
    turned[..., half : 2 * half] = second * cosine + first * sine
    turned[..., 2 * half :] = part_BTHK[..., 2 * half :]
    return turned


BODIES: dict[str, type[FeedForward | Recurrent | Transformer]] = {
    "ffnn": FeedForward,
    "rnn": Recurrent,
    "relu-rnn": Recurrent,
    "lstm": Recurrent,
    "relu-lstm": Recurrent,
    "transformer": Transformer,
}
