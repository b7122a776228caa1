"""A run's network in NumPy, on a CPU and without PyTorch: straight from its model.safetensors, however rows are packed.

The tables are mapped into memory, and the rows that are asked for are read. What needs the whole output table (the
softmax, the likeliest words) goes over it a block of rows at a time.

Legend: T time steps, B rows, L words read, N positions, K words, V vocabulary, D hidden, W different words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.engine.network import Floats, Ints, Network
from bnce.engine.numpy_bodies import BODIES, Recurrent
from bnce.engine.sampling import highest
from bnce.registry import Loss, ModelConfig

# One block of scores: 2^20 numbers fit into a CPU's cache.
BLOCK_POSITIONS, BLOCK_WORDS = 512, 2048
SCALE_SUFFIX = ".scale"
HIDDEN = {"hidden.weight": 0, "cell.weight_hh_l0": 1, "enter.weight": 0}  # where bodies have D as an axis
# NumPy has no bf16, which is the upper half of a float32.
TYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<u2", "I8": "|i1"}

State = tuple[Floats, ...]


def can_compute(model: ModelConfig, loss: Loss) -> bool:
    """Say whether NumPy can compute a run: bodies from outside and exactly normalised layers are PyTorch's alone."""
    return model.name in BODIES and not loss.structure


class NumpyNetwork(Network):
    """Computes a run by its settings and its weights; a calibrated one has a constant whatever its loss."""

    is_exact = False
    device = "cpu"
    max_positions, min_steps = 2**12, 16

    def __init__(self, path: Path, model: ModelConfig, loss: Loss, is_calibrated: bool = False) -> None:
        tables = _map_tensors(path)
        self._embedding, self._output = tables["embedding"], tables["output.weight"]
        self._bias_V = tables["output.bias"].rows(slice(None))
        self.vocab_size, self.hidden_size = self._output.shape
        weights = {
            name.removeprefix("body."): table.rows(slice(None))
            for name, table in tables.items()
            if name.startswith("body.")
        }
        hidden_sizes = [weights[key].shape[axis] for key, axis in HIDDEN.items() if key in weights]
        sizes = [self._embedding.shape[1], *hidden_sizes]
        if sizes != [model.embedding_size, model.hidden_size][: len(sizes)]:
            raise ValueError(f"size mismatch: it has the embedding and hidden sizes {sizes}")
        self._body = BODIES[model.name](model.settled(), weights, self._embedding.rows)
        self.num_context, self.num_words_seen = self._body.num_context, self._body.num_words_seen
        self.log_z, self.loss_name = float(tables["output.log_z"].rows(...)), loss.name
        self.normalises = loss.normalises or is_calibrated
        self.prefers_tree = self._body.branches
        self.max_rows = self.rows_at_once(128)

    def initial_state(self, num_rows: int) -> State:
        """Make the state that a text starts from."""
        return self._body.initial_state(num_rows)

    def forward(self, ids_LB: Ints, state: State) -> tuple[Floats, State]:
        """Read words."""
        return self._body.forward(ids_LB, state)

    def enter(self, word_W: Ints) -> Floats:
        """Compute of words what does not depend on states."""
        assert isinstance(self._body, Recurrent)
        return self._body.enter(word_W)

    def branch(self, entered: Floats, word_B: Ints, state: State, parent_B: Ints) -> tuple[Floats, State]:
        """Run one step into pairs of words and states."""
        assert isinstance(self._body, Recurrent)
        return self._body.branch(entered, word_B, state, parent_B)

    def scores(self, hidden_ND: Floats, words_NK: Ints) -> Floats:
        """Compute the raw scores of K words for each position."""
        row_NKD = self._output.rows(words_NK)
        score_NK: Floats = np.einsum("nkd,nd->nk", row_NKD, hidden_ND)
        score_NK += self._bias_V[words_NK]
        return score_NK

    def all_scores(self, hidden_ND: Floats) -> Floats:
        """Compute the raw scores of every word."""
        score_NV = np.empty((len(hidden_ND), self.vocab_size), dtype=np.float32)
        for rows, words, block_NV in self._blocks(hidden_ND):
            score_NV[rows, words] = block_NV
        return score_NV

    def log_normaliser(self, hidden_ND: Floats) -> Floats:
        """Compute ln Z(context)."""
        log_z_N = np.full(len(hidden_ND), -np.inf, dtype=np.float32)
        for rows, _, block_NV in self._blocks(hidden_ND):
            log_z_N[rows] = np.logaddexp(log_z_N[rows], _log_sum_exp(block_NV))
        return log_z_N

    def entropy(self, hidden_ND: Floats) -> Floats:
        """Compute the entropy of the next word, in two passes over the table."""
        log_z_N, mean_N = self.log_normaliser(hidden_ND), np.zeros(len(hidden_ND))
        for rows, _, block_NV in self._blocks(hidden_ND):
            block_NV -= log_z_N[rows, None]
            mean_N[rows] += (np.exp(block_NV) * block_NV).sum(1, dtype=np.float64)
        return -mean_N

    def top_words(self, hidden_ND: Floats, k: int) -> tuple[Floats, Ints, Floats]:
        """Find the words with the highest raw scores."""
        parts = []
        for hidden_BD in self.row_blocks(hidden_ND):
            score_BV = self.all_scores(hidden_BD)
            word_BK = highest(score_BV, k)
            parts.append((np.take_along_axis(score_BV, word_BK, 1), word_BK, _log_sum_exp(score_BV)))
        best_NK, word_NK, log_z_N = (np.concatenate(part) for part in zip(*parts, strict=True))
        return best_NK, word_NK, log_z_N

    def _blocks(self, hidden_ND: Floats) -> Iterator[tuple[slice, slice, Floats]]:
        """Score all words, some positions by some words at a time: raw scores, written over later."""
        N, V = len(hidden_ND), self.vocab_size
        for first in range(0, N, BLOCK_POSITIONS):
            rows = slice(first, min(first + BLOCK_POSITIONS, N))
            B = rows.stop - first
            # Of few positions a block has more words, but never more rows of a packed table.
            size = min(V, max(BLOCK_WORDS, BLOCK_POSITIONS * BLOCK_WORDS // max(B, self.hidden_size)))
            memory = np.empty(B * size, dtype=np.float32)  # once: new memory costs as much as the numbers in it
            for begin in range(0, V, size):
                words = slice(begin, min(begin + size, V))
                block_BV = memory[: B * (words.stop - begin)].reshape(B, -1)
                np.matmul(hidden_ND[rows], self._output.rows(words).T, out=block_BV)
                block_BV += self._bias_V[words]
                yield rows, words, block_BV


class _Table:
    """A tensor as it is stored, and the scales of its rows if it has them."""

    def __init__(self, stored: NDArray[Any], is_bf16: bool, scale_V: Floats | None) -> None:
        self._stored, self._is_bf16, self._scale_V = stored, is_bf16, scale_V
        self.shape = stored.shape

    def rows(self, place: Any) -> Floats:
        """Give some rows as float32, by their places or as a slice."""
        part = self._stored[place]
        if self._is_bf16:
            part = (part.astype(np.uint32) << 16).view(np.float32)
        rows: Floats = np.asarray(part, dtype=np.float32)
        return rows if self._scale_V is None else rows * self._scale_V[place][..., None]


def _map_tensors(path: Path) -> dict[str, _Table]:
    """Map the tensors of a safetensors file, which is a header and raw bytes."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    whole = np.memmap(path, dtype=np.uint8, mode="r")
    stored = {}
    for name, one in header.items():
        begin, end = (8 + size + offset for offset in one["data_offsets"])
        stored[name] = np.asarray(whole[begin:end]).view(TYPES[one["dtype"]]).reshape(one["shape"])
    return {
        name: _Table(array, header[name]["dtype"] == "BF16", stored.get(name + SCALE_SUFFIX))
        for name, array in stored.items()
    }


def _log_sum_exp(score_NV: Floats) -> Floats:
    """Compute ln Σ exp of each row, which is written over."""
    highest_N = score_NV.max(1)
    score_NV -= highest_N[:, None]
    np.exp(score_NV, out=score_NV)
    log_sum_N: Floats = np.log(score_NV.sum(1)) + highest_N
    return log_sum_N
