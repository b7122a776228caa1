"""The network of an exported run in ONNX Runtime, on a CPU and without PyTorch.

ONNX Runtime maps the tables into memory and reads the rows that it is asked for. What needs the whole output table (the
softmax, the likeliest words) goes over the mapped file here, a block of rows at a time.

Legend: T time steps, B texts side by side, L words read, N positions, K words, V vocabulary, D hidden, W different
words, P different states, A pairs of a part.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.errors import UserError
from bnce.machine.packages import need
from bnce.machine.threads import num_threads_without_torch
from bnce.scoring import engine
from bnce.scoring.engine import Engine, Floats, Ints
from bnce.scoring.export_record import WEIGHTS_FILE
from bnce.scoring.sampling import highest

MIN_BLOCK_WORDS = 1024
# Pairs that go through a step together: the gates of more do not stay in a CPU's cache, and need new memory.
PART_PAIRS = 256

State = tuple[Floats, ...]


class OnnxEngine(Engine):
    """Runs the graphs of an exported run."""

    device = "cpu"
    is_exact = False
    num_parallel = 128
    pass_words = 2**12

    def __init__(self, directory: Path, record: Mapping[str, Any]) -> None:
        self._directory, self._record = directory, record
        self.vocab_size, self.num_context = int(record["vocab_size"]), int(record["num_context"])
        self.num_words_seen, self.loss_name = record["num_words_seen"], str(record["loss"])
        self.log_z, self.normalises = float(record["log_z"]), bool(record["self_normalised"])
        self.branches = self.reads_trees = (directory / "step.onnx").is_file()
        self._state_shapes = [[layers, *rest] for layers, _, *rest in record["state"].values()]
        self._sessions: dict[str, Any] = {}

    def initial_state(self, num_texts: int) -> State:
        """Make the state that a text starts from."""
        return tuple(np.zeros((layers, num_texts, *rest), dtype=np.float32) for layers, *rest in self._state_shapes)

    def run(self, word_LB: Ints, state: State) -> tuple[Floats, State]:
        """Read words."""
        hidden_TBD, *after = self._compute("body", word_LB, *state)
        return hidden_TBD, tuple(after)

    def enter(self, word_W: Ints) -> Floats:
        """Compute of words what does not depend on states."""
        (entered_WG,) = self._compute("enter", word_W)
        return entered_WG

    def branch(self, entered: Floats, word_B: Ints, state: State, parent_B: Ints) -> tuple[Floats, State]:
        """Run one step into pairs of words and states."""
        if len(parent_B) <= PART_PAIRS:
            hidden_BD, *after = self._compute("step", entered, word_B, parent_B, *state)
            return hidden_BD, tuple(after)
        parts = []
        for begin in range(0, len(parent_B), PART_PAIRS):
            own = slice(begin, begin + PART_PAIRS)
            # The graph multiplies every state that it is given: those between, since parents come in their order.
            first, last = int(parent_B[own].min()), int(parent_B[own].max())
            before = (part[:, first : last + 1] for part in state)
            parts.append(self._compute("step", entered, word_B[own], parent_B[own] - first, *before))
        hiddens, *afters = zip(*parts, strict=True)
        return np.concatenate(hiddens), tuple(np.concatenate(part, 1) for part in afters)

    def scores(self, hidden_ND: Floats, words_NK: Ints) -> Floats:
        """Compute the raw scores of K words for each position."""
        # Not with words.onnx, which is for others: ONNX Runtime takes four times as long for one word per position.
        table_VD, scale_V, bias_V = self._output
        row_NKD = np.asarray(table_VD[words_NK], dtype=np.float32)
        score_NK: Floats = np.einsum("nkd,nd->nk", row_NKD, hidden_ND)
        if scale_V is not None:
            score_NK *= scale_V[words_NK]
        score_NK += bias_V[words_NK]
        return score_NK

    def all_scores(self, hidden_ND: Floats) -> Floats:
        """Compute the raw scores of every word."""
        score_NV = np.empty((len(hidden_ND), self.vocab_size), dtype=np.float32)
        for begin, block_NV in self._blocks(hidden_ND):
            score_NV[:, begin : begin + block_NV.shape[1]] = block_NV
        return score_NV

    def log_normaliser(self, hidden_ND: Floats) -> Floats:
        """Compute ln Z(context)."""
        sum_N = np.full(len(hidden_ND), -np.inf, dtype=np.float32)
        for _, block_NV in self._blocks(hidden_ND):
            sum_N = np.logaddexp(sum_N, _log_sum_exp(block_NV))
        return sum_N

    def top_words(self, hidden_BD: Floats, num_words: int, without: int | None = None) -> tuple[Floats, Ints, Floats]:
        """Find the words with the highest raw scores."""
        best_BK = np.zeros((len(hidden_BD), 0), dtype=np.float32)
        word_BK = np.zeros((len(hidden_BD), 0), dtype=np.int64)
        sum_B = np.full(len(hidden_BD), -np.inf, dtype=np.float32)
        for begin, block_BV in self._blocks(hidden_BD):
            sum_B = np.logaddexp(sum_B, _log_sum_exp(block_BV))
            if without is not None and begin <= without < begin + block_BV.shape[1]:
                block_BV[:, without - begin] = -np.inf
            place_BK = highest(block_BV, num_words)
            both_BK = np.concatenate([best_BK, np.take_along_axis(block_BV, place_BK, 1)], axis=1)
            both_word_BK = np.concatenate([word_BK, place_BK + begin], axis=1)
            order_BK = highest(both_BK, num_words)
            best_BK = np.take_along_axis(both_BK, order_BK, 1)
            word_BK = np.take_along_axis(both_word_BK, order_BK, 1)
        return best_BK, word_BK, sum_B

    def entropy(self, hidden_ND: Floats) -> NDArray[np.float64]:
        """Compute the entropy of the next word, in two passes over the table."""
        log_normaliser_N = self.log_normaliser(hidden_ND)
        mean_N = np.zeros(len(hidden_ND))
        for _, block_NV in self._blocks(hidden_ND):
            log_prob_NV = block_NV - log_normaliser_N[:, None]
            mean_N += (np.exp(log_prob_NV) * log_prob_NV).sum(1, dtype=np.float64)
        return -mean_N

    def _compute(self, graph: str, *given: NDArray[Any]) -> list[Floats]:
        if graph not in self._sessions:
            self._sessions[graph] = _open_session(self._directory / f"{graph}.onnx")
        session, names = self._sessions[graph]
        found: list[Floats] = session.run(None, dict(zip(names, given, strict=True)))
        return found

    def _blocks(self, hidden_ND: Floats) -> Iterator[tuple[int, Floats]]:
        """Score all words, a block of them at a time: the first word of each block, and raw scores (N, words)."""
        table_VD, scale_V, bias_V = self._output
        block_words = max(MIN_BLOCK_WORDS, engine.BLOCK_NUMBERS // max(len(hidden_ND), hidden_ND.shape[1]))
        for begin in range(0, self.vocab_size, block_words):
            own = slice(begin, begin + block_words)
            block_NV = hidden_ND @ np.asarray(table_VD[own], dtype=np.float32).T
            if scale_V is not None:
                block_NV *= scale_V[own]
            block_NV += bias_V[own]
            yield begin, block_NV

    @functools.cached_property
    def _output(self) -> tuple[NDArray[Any], Floats | None, Floats]:
        """The output table as it is stored, the scales of its rows if it has them, and the bias."""
        has_scale = "output_weight_scale" in self._record["weights"]
        bias_V = self._map("output_bias_less_log_z") + np.float32(self.log_z)
        return self._map("output_weight"), self._map("output_weight_scale") if has_scale else None, bias_V

    def _map(self, name: str) -> NDArray[Any]:
        place = self._record["weights"][name]
        return np.memmap(
            self._directory / WEIGHTS_FILE, place["dtype"], "r", int(place["offset"]), tuple(place["shape"])
        )


def _log_sum_exp(score_NV: Floats) -> Floats:
    highest_N1 = score_NV.max(1, keepdims=True)
    log_sum_N: Floats = np.log(np.exp(score_NV - highest_N1).sum(1)) + highest_N1[:, 0]
    return log_sum_N


def _open_session(path: Path) -> tuple[Any, list[str]]:
    """Open a graph; give it with the names of its inputs."""
    onnxruntime = need("onnxruntime", "An exported run", "score")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads_without_torch()
    options.log_severity_level = 3  # errors, which are raised
    # Threads that wait for work would take a core from whoever else computes, and from the start of the program.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes are those of its C++ code
        reason = str(error).strip().splitlines()[-1][:200]
        raise UserError(
            f"The exported run '{path.parent}' is damaged: ONNX Runtime cannot open {path.name} ({reason}); export the "
            "run again."
        ) from error
    return session, [each.name for each in session.get_inputs()]
