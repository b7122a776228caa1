"""A decoder-only Transformer: each position attends to itself and to the words before it, `context` of them in all.

Pre-norm RMSNorm without learned scales, rotary positions, normalised queries and keys, squared ReLu. In training a
chunk is read by itself, so `training.num_steps` is the most words that a position sees. Otherwise the state has the
keys and values of the last `context` words of every stream, and each layer sees as many, however a text is cut.

Legend: T time steps, B streams, E embedding, D hidden, H heads, K = D / H, W words in the state, S words with keys, L
layers.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bnce import kernels, registry
from bnce.machine.precision import sum_dtype
from bnce.models.body import Body, State

LONGEST_PASS = 256  # words of a text in one pass, or as many as the context has
WIDENING = 4  # of the layer between two residual streams
SLOWEST = 10_000.0  # words of the slowest rotation, divided by 2π


def build(config: registry.Transformer) -> Transformer:
    """Build one from its settings."""
    return Transformer(
        config.embedding_size,
        config.hidden_size,
        config.num_layers,
        config.num_heads,
        config.context,
        config.dropout,
    )


class Transformer(Body):
    """Layers of attention and a wide squared ReLu, around a residual stream."""

    def __init__(
        self, embedding_size: int, hidden_size: int, num_layers: int, num_heads: int, context: int, dropout: float
    ) -> None:
        super().__init__()
        self.enter = None if embedding_size == hidden_size else nn.Linear(embedding_size, hidden_size, bias=False)
        self.blocks = nn.ModuleList(Block(hidden_size, num_heads, dropout) for _ in range(num_layers))
        self.dropout = nn.Dropout(dropout)
        self.num_heads, self.context = num_heads, context
        self.output_size = hidden_size
        self.num_words = num_layers * (context - 1) + 1  # what a layer sees has seen as much itself
        self._compiled_steps: int | None = None

    def initial_state(self, num_streams: int) -> State:
        """Make room for the words before a text, of which there are none; in training, nothing is carried on."""
        if self.training:
            return ()
        like, D = self._weight, self.output_size
        keys = torch.zeros(len(self.blocks), num_streams, self.context, D, dtype=like.dtype, device=like.device)
        num_known = torch.zeros(1, num_streams, dtype=like.dtype, device=like.device)
        return keys, keys.clone(), num_known

    def products_per_word(self, num_steps: int) -> float:
        """Count, beside those of the weights, the products with the keys and values of half a chunk on average."""
        return super().products_per_word(num_steps) + len(self.blocks) * (num_steps + 1) * self.output_size

    @property
    def _weight(self) -> Tensor:
        weight: Tensor = self.blocks[0].query_key_value.weight  # type: ignore[union-attr, assignment]
        return weight

    def forward(self, embedded_TBE: Tensor, state: State, reset_TB: Tensor | None = None) -> tuple[Tensor, State]:
        """Run T steps, alone or after the words of a state; the returned state is cut from the graph.

        Only a chunk that is read by itself can have resets.
        """
        assert not state or reset_TB is None
        longest = max(self.context, LONGEST_PASS)
        if state and len(embedded_TBE) > longest:
            # Each word attends to few, but room is needed for all pairs of words.
            parts = []
            for part_TBE in embedded_TBE.split(longest):
                hidden_TBD, state = self(part_TBE, state)
                parts.append(hidden_TBD)
            return torch.cat(parts), state
        stream_BTD = self._enter(embedded_TBE.transpose(0, 1))
        hidden_BTD, after = self._alone(stream_BTD, reset_TB) if not state else self._after(stream_BTD, state)
        return _normed(hidden_BTD).transpose(0, 1), after

    def _enter(self, embedded_BTE: Tensor) -> Tensor:
        entered: Tensor = embedded_BTE if self.enter is None else self.enter(embedded_BTE)
        return self.dropout(_normed(entered))  # type: ignore[no-any-return]

    def _alone(self, stream_BTD: Tensor, reset_TB: Tensor | None) -> tuple[Tensor, State]:
        turn = rotations(stream_BTD.shape[1], self.output_size // self.num_heads, stream_BTD)
        T = stream_BTD.shape[1]
        # One length is compiled, that of almost all chunks; the one at the end of an epoch is not worth the wait.
        is_compiled = kernels.choose("dense", stream_BTD) is not None
        if is_compiled and self._compiled_steps is None:
            self._compiled_steps = T
        block = _fast_block() if is_compiled and self._compiled_steps == T else run_block
        is_seen_B1TT = None if reset_TB is None else _seen_since_reset(reset_TB)
        for layer in self.blocks:
            assert isinstance(layer, Block)
            stream_BTD = block(layer, stream_BTD, *turn, is_seen_B1TT)
        return stream_BTD, ()

    def _after(self, stream_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        keys_LBWD, values_LBWD, known_1B = state
        W, T = self.context, stream_BTD.shape[1]
        # Only words that are there are gone through: a text of ten words need not attend to a hundred.
        first = W - int(known_1B.max())
        num_before = W - first
        turn = rotations(num_before + T, self.output_size // self.num_heads, stream_BTD)
        place_S = torch.arange(num_before + T, device=known_1B.device)
        place_T1 = place_S[num_before:].unsqueeze(1)
        is_seen_TS = (place_S <= place_T1) & (place_S > place_T1 - W)
        is_known_BS = place_S >= num_before - known_1B[0].unsqueeze(1)
        is_seen_B1TS = (is_seen_TS & is_known_BS.unsqueeze(1)).unsqueeze(1)
        after = torch.zeros_like(keys_LBWD), torch.zeros_like(values_LBWD)
        for number, layer in enumerate(self.blocks):
            assert isinstance(layer, Block)
            stream_BTD, *found = layer.run_after(
                stream_BTD, keys_LBWD[number, :, first:], values_LBWD[number, :, first:], is_seen_B1TS, turn
            )
            for kept_LBWD, part_BSD in zip(after, found, strict=True):
                last_BSD = part_BSD[:, -W:].detach()
                kept_LBWD[number, :, W - last_BSD.shape[1] :] = last_BSD
        return stream_BTD, (*after, (known_1B + T).clamp(max=W))


class Block(nn.Module):
    """One layer: what attention finds, and what a wide squared ReLu makes of it, are added to the stream."""

    def __init__(self, size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query_key_value = nn.Linear(size, 3 * size, bias=False)
        self.found = nn.Linear(size, size, bias=False)
        self.up = nn.Linear(size, WIDENING * size, bias=False)
        self.down = nn.Linear(WIDENING * size, size, bias=False)
        self.dropout = nn.Dropout(dropout)
        # A layer that adds nothing at the start lets the first steps train what is around it.
        nn.init.zeros_(self.found.weight)
        nn.init.zeros_(self.down.weight)

    def split(self, stream_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Give queries, keys and values (B, T, H, K), queries and keys normalised."""
        B, T, _ = stream_BTD.shape
        parts = self.query_key_value(_normed(stream_BTD)).view(B, T, 3, self.num_heads, -1)
        query, key, value = parts.unbind(2)
        return _normed(query), _normed(key), value

    def add(self, stream_BTD: Tensor, found_BHTK: Tensor) -> Tensor:
        """Add what attention found, and the wide layer."""
        stream_BTD = stream_BTD + self.dropout(self.found(found_BHTK.transpose(1, 2).flatten(2)))
        wide = F.relu(self.up(_normed(stream_BTD))).square()
        added: Tensor = stream_BTD + self.dropout(self.down(wide))
        return added

    def run_after(
        self,
        stream_BTD: Tensor,
        key_BWD: Tensor,
        value_BWD: Tensor,
        is_seen_B1TS: Tensor,
        turn: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the layer after words whose keys and values are known, and give those of all words."""
        num_before = key_BWD.shape[1]
        query, key, value = self.split(stream_BTD)
        # Keys are kept as they are before they are turned: it is the distance between words that counts.
        key_BSD = torch.cat([key_BWD.to(key.dtype), key.flatten(2)], 1)
        value_BSD = torch.cat([value_BWD.to(value.dtype), value.flatten(2)], 1)
        key, value = (part.unflatten(2, (self.num_heads, -1)) for part in (key_BSD, value_BSD))
        cosine, sine = turn
        query = rotate(query, cosine[num_before:], sine[num_before:])
        found = attend(query, rotate(key, cosine, sine), value, is_seen_B1TS)
        return self.add(stream_BTD, found), key_BSD, value_BSD


def attend(query: Tensor, key: Tensor, value: Tensor, is_seen_B1TS: Tensor | None) -> Tensor:
    """Find values by turned queries (B, T, H, K) and turned keys, among those that are seen; None: up to each query."""
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=is_seen_B1TS, is_causal=is_seen_B1TS is None)


def run_block(
    block: Block, stream_BTD: Tensor, cosine_TK: Tensor, sine_TK: Tensor, is_seen_B1TT: Tensor | None = None
) -> Tensor:
    """Run a layer on a chunk by itself; a position attends to all before it, or to those that are seen."""
    query, key, value = block.split(stream_BTD)
    query, key = rotate(query, cosine_TK, sine_TK), rotate(key, cosine_TK, sine_TK)
    return block.add(stream_BTD, attend(query, key, value, is_seen_B1TT))


def _seen_since_reset(reset_TB: Tensor) -> Tensor:
    """Tell which words (B, 1, T, T) a position attends to: those up to it since its stream was last reset.

    Places need not be counted anew after a reset, since only distances count.
    """
    text_BT = reset_TB.t().cumsum(1)
    is_same_BTT = text_BT.unsqueeze(2) == text_BT.unsqueeze(1)
    return is_same_BTT.tril().unsqueeze(1)


@functools.cache
def _fast_block() -> Callable[[Block, Tensor, Tensor, Tensor, Tensor | None], Tensor]:
    """Let PyTorch compile a layer: what is between its products becomes a few kernels."""
    with _compiler_warnings_ignored():
        compiled = torch.compile(run_block, dynamic=False)

    def run(
        block: Block, stream_BTD: Tensor, cosine_TK: Tensor, sine_TK: Tensor, is_seen_B1TT: Tensor | None
    ) -> Tensor:
        with _compiler_warnings_ignored():
            hidden_BTD: Tensor = compiled(block, stream_BTD, cosine_TK, sine_TK, is_seen_B1TT)
        return hidden_BTD

    return run


@contextlib.contextmanager
def _compiler_warnings_ignored() -> Iterator[None]:
    """Ignore what the compiler warns of and does itself: it imports old names, and looks at gradients of products."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def rotation_speeds(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Give the angle per place of each pair of numbers (K / 2,)."""
    return SLOWEST ** -(torch.arange(0, size - 1, 2, dtype=dtype, device=device) / size)


def rotations(num_places: int, size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Give cosine and sine (T, 1, K / 2) of the angles that the first places are turned by."""
    dtype = sum_dtype(like.dtype)
    place_T = torch.arange(num_places, dtype=dtype, device=like.device)
    angle = torch.outer(place_T, rotation_speeds(size, dtype, like.device)).unsqueeze(1)
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def rotate(part_BTHK: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn pairs of numbers by the angles of their place, so that products depend on distances alone."""
    half = cosine.shape[-1]
    first, second, rest = part_BTHK[..., :half], part_BTHK[..., half : 2 * half], part_BTHK[..., 2 * half :]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine, rest], -1).to(part_BTHK.dtype)


def _normed(part: Tensor) -> Tensor:
    return F.rms_norm(part, (part.shape[-1],))
