"""The bodies in NumPy, for runs that are scored without PyTorch: embedded words in, last hidden layer out.

Legend: T time steps, B rows, C context words before the first position, L = C + T, E embedding, D hidden, G gates, W
different words, P states, A pairs of word and state; of recurrent bodies N layers; in a Transformer L layers, W words
in the state, S words with keys, H heads, K = D / H.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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


class FeedForward:
    """A network that sees order − 1 words."""

    branches = False

    def __init__(self, settings: Any, weights: Weights, embed: Rows) -> None:
        self.num_words_seen, self.num_context = settings.order - 1, settings.order - 2
        self._embed = embed
        self._layers = [(weights[f"{name}.weight"].T, weights[f"{name}.bias"]) for name in ("hidden", "bottleneck")]

    def initial_state(self, num_rows: int) -> State:
        """Make the empty state: passes bring their context along."""
        return ()

    def forward(self, ids_LB: Ints, state: State) -> tuple[Floats, State]:
        """Map C + T words to T hidden rows."""
        L, B = ids_LB.shape
        T = L - self.num_context
        embedded_LBE = self._embed(ids_LB.ravel()).reshape(L, B, -1)
        windows = [embedded_LBE[offset : offset + T] for offset in range(self.num_context + 1)]
        hidden_ND = np.concatenate(windows, axis=2).reshape(T * B, -1)
        for weight_ED, bias_D in self._layers:
            hidden_ND = _relu(_linear(hidden_ND, weight_ED, bias_D))
        return hidden_ND.reshape(T, B, -1), state


class Recurrent:
    """Layers of RNN or LSTM, then, if it has one, a narrower ReLu layer.

    From the second layer on, a layer reads the sum of what those below it have found, and so does the last.
    """

    num_context, num_words_seen, branches = 0, None, True

    def __init__(self, settings: Any, weights: Weights, embed: Rows) -> None:
        names = ["cell", *(f"upper.{number}" for number in range(settings.num_layers - 1))]
        num_rows, hidden_size = weights["cell.weight_hh_l0"].shape
        self._is_lstm = num_rows == 4 * hidden_size  # its gates
        self._layers = [self._read_layer(weights, name) for name in names]
        self._neck: tuple[Floats, Floats] | None = None
        if "bottleneck.weight" in weights:
            self._neck = weights["bottleneck.weight"].T, weights["bottleneck.bias"]
        self._embed = embed

    def _read_layer(self, weights: Weights, name: str) -> tuple[Floats, Floats, Floats]:
        """Give weights of input and state (D, G) and the bias (G,), such that a gate is (1 + tanh(sum)) / 2.

        The halves that σ(x) = (1 + tanh(x / 2)) / 2 asks for are in the weights, where they cost and round nothing.
        """
        parts = [weights[f"{name}.{part}_l0"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        size = parts[1].shape[1]
        factor_G = np.full(len(parts[2]), 0.5 if self._is_lstm else 1, dtype=np.float32)
        factor_G[2 * size : 3 * size] = 1  # no gate, but what may enter the memory
        return (parts[0].T * factor_G).copy(), (parts[1].T * factor_G).copy(), (parts[2] + parts[3]) * factor_G

    def initial_state(self, num_rows: int) -> State:
        """Make the zero state that a text starts from."""
        zeros = np.zeros((len(self._layers), num_rows, len(self._layers[0][1])), dtype=np.float32)
        return (zeros, zeros.copy()) if self._is_lstm else (zeros,)

    def forward(self, ids_LB: Ints, state: State) -> tuple[Floats, State]:
        """Read words; of each different one the product with the input weights is computed once."""
        word_W, place_N = np.unique(ids_LB, return_inverse=True)
        entered_WG, parent_B = self.enter(word_W), np.arange(ids_LB.shape[1])
        hidden = []
        for place_B in place_N.reshape(ids_LB.shape):
            hidden_BD, state = self._step(entered_WG, place_B, state, parent_B)
            hidden.append(hidden_BD)
        return self._narrow(np.stack(hidden)), state

    def enter(self, word_W: Ints) -> Floats:
        """Multiply words by the input weights."""
        return _linear(self._embed(word_W), *self._layers[0][::2])

    def branch(self, entered_WG: Floats, word_A: Ints, state: State, parent_A: Ints) -> tuple[Floats, State]:
        """Run one step into pairs of words and states."""
        hidden_AD, after = self._step(entered_WG, word_A, state, parent_A)
        return self._narrow(hidden_AD), after

    def _step(self, entered_WG: Floats, word_A: Ints, state: State, parent_A: Ints) -> tuple[Floats, State]:
        """Run the recurrent layers; each word and each state is multiplied once, not once per pair."""
        # Where nearly every state goes on by one word, to copy states is cheaper than to copy their products.
        is_shared = state[0].shape[1] * SHARED_STATES <= len(parent_A)
        shared = [hidden_PD @ layer[1] for hidden_PD, layer in zip(state[0], self._layers, strict=True) if is_shared]
        after = tuple(np.empty((len(part), len(parent_A), part.shape[2]), dtype=np.float32) for part in state)
        for begin in range(0, len(parent_A), PART_PAIRS):
            own = slice(begin, begin + PART_PAIRS)
            parent = parent_A[own]
            for number, (input_DG, state_DG, bias_G) in enumerate(self._layers):
                if number:
                    sum_AG = _linear(after[0][:number, own].sum(0), input_DG, bias_G)
                else:
                    sum_AG = entered_WG[word_A[own]]
                sum_AG += shared[number][parent] if is_shared else state[0][number][parent] @ state_DG
                memory = [part[number][parent] for part in state[1:]]
                self._squash(sum_AG, memory, [part[number, own] for part in after])
        return after[0].sum(0) if len(self._layers) > 1 else after[0][0], after

    def _narrow(self, hidden: Floats) -> Floats:
        return hidden if self._neck is None else _relu(_linear(hidden, *self._neck))

    def _squash(self, sum_AG: Floats, memory: Sequence[Floats], after: Sequence[Floats]) -> None:
        """Compute a cell's state into `after` from the sums of its gates, which are written over."""
        if not self._is_lstm:
            np.tanh(sum_AG, out=after[0])
            return
        hidden_AD, memory_AD = after
        np.tanh(sum_AG, out=sum_AG)
        enter_AD, keep_AD, new_AD, leave_AD = np.split(sum_AG, 4, axis=1)
        for gate_AD in (enter_AD, keep_AD, leave_AD):
            gate_AD += 1
            gate_AD *= 0.5
        np.multiply(keep_AD, memory[0], out=memory_AD)
        new_AD *= enter_AD
        memory_AD += new_AD
        np.tanh(memory_AD, out=hidden_AD)
        hidden_AD *= leave_AD


def _linear(input_ND: Floats, weight_DG: Floats, bias_G: Floats) -> Floats:
    sum_NG: Floats = input_ND @ weight_DG
    sum_NG += bias_G
    return sum_NG


def _relu(sum_ND: Floats) -> Floats:
    return np.maximum(sum_ND, 0, out=sum_ND)


class Transformer:
    """Layers of attention and a wide squared ReLu; the state has keys and values of the last words of every row."""

    num_context, branches = 0, False

    def __init__(self, settings: Any, weights: Weights, embed: Rows) -> None:
        self._embed = embed
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

    def forward(self, ids_LB: Ints, state: State) -> tuple[Floats, State]:
        """Read words after those of the state; of a long text a part at a time, since pairs of words need room."""
        parts, longest = [], max(self._context, LONGEST_PASS)
        for begin in range(0, len(ids_LB), longest):
            part_TBD, state = self._pass(ids_LB[begin : begin + longest], state)
            parts.append(part_TBD)
        return parts[0] if len(parts) == 1 else np.concatenate(parts), state

    def _pass(self, ids_TB: Ints, state: State) -> tuple[Floats, State]:
        keys_LBWD, values_LBWD, known_1B = state
        W, (T, B) = self._context, ids_TB.shape
        stream_BTD = self._embed(ids_TB.T.ravel()).reshape(B, T, -1)
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
        wide = _relu(_normed(stream_BTD) @ up)
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
