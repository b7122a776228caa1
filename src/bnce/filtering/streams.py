"""ln p of whole documents, many side by side, in streams that never wait for each other.

A stream reads one document after another; where one begins, the stream's state is reset. So the network sees full
chunks of T steps and B streams whatever the lengths of documents are, and only the last documents leave streams empty;
then the chunk becomes narrower. Shapes are few and fixed, so that on a GPU a chunk is a captured CUDA graph.

What a document gets depends on the documents before it in its list alone, and by rounding only.

Legend: T time steps of a chunk, S of a window, B streams side by side, C context words of an n-gram body, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnce.corpus.vocabulary import END
from bnce.engine.torch_network import TorchNetwork
from bnce.errors import UserError, argument, unknown_name
from bnce.language_model import LanguageModel
from bnce.machine.capturing import SideStream
from bnce.machine.precision import float32_products
from bnce.models.body import State

NUM_STREAMS = {"cpu": 64, "cuda": 2048}
NUM_STEPS = {"cpu": 16, "cuda": 32}
CHUNKS = 4  # of a window, which is laid out at once
NARROWER = 4  # a GPU has graphs of so many times fewer streams, down to MIN_STREAMS
MIN_STREAMS = 32
NUM_EAGER = 3  # chunks before a graph is captured: Triton compiles and libraries choose in these
PRECISIONS = ("float32", "tf32", "bf16")

Ids = NDArray[np.integer]
# The next document with its number; None if there is none for now.
Take = Callable[[], "tuple[int, Ids] | None"]
Done = Callable[[NDArray[np.int64], NDArray[np.float64]], None]


# A document that a stream is at: its number, its ids, and how many of them were read.
_Reading = tuple[int, Ids, int]


class _Window(NamedTuple):
    """What is laid out: the words with C + 1 before them, where texts begin, and which places are whose."""

    word_LB: NDArray[np.int64]
    reset_LB: NDArray[np.bool_]
    segment_N4: NDArray[np.int64]  # stream, begin, end, document
    finished: list[int]  # documents that end here
    num_steps: int


class StreamScorer:
    """Sums up ln p over documents of ids, each of which ends in `</s>`."""

    def __init__(
        self,
        network: LanguageModel,
        *,
        normalised: bool = False,
        precision: str = "float32",
        num_streams: int | None = None,
        num_steps: int | None = None,
        aligned: bool | None = None,
    ) -> None:
        engine = TorchNetwork(network)
        if not normalised:
            engine.choose_mode("unnormalised")
        if precision not in PRECISIONS:
            raise unknown_name("precision", precision, PRECISIONS)
        self.network, self.normalised, self.precision = network.eval(), normalised, precision
        self.device = network.embedding.device
        if precision != "float32" and self.device.type == "cpu":
            raise UserError(f"The precision is {precision}, which is for GPUs: use {argument('precision', 'float32')}.")
        most = NUM_STREAMS[self.device.type] if num_streams is None else num_streams
        self.num_streams = engine.rows_at_once(most)
        self.num_steps = NUM_STEPS[self.device.type] if num_steps is None else num_steps
        # A body that attends cannot be reset within a chunk: its documents begin where chunks do. On a CPU those of
        # recurrent bodies do, too. The end of a document then leaves some steps empty, but a chunk in one call takes
        # half the time of one step after the other (LSTM of 600 units; RNN: three quarters).
        is_quicker = self.device.type == "cpu" and not network.num_context
        self.aligned = network.body.context > 0 or (is_quicker if aligned is None else aligned)
        self._chunks: dict[int, _Chunk] = {}

    @torch.inference_mode()
    def score(self, take: Take, done: Done) -> None:
        """Take documents until there is none and all are read; `done` is told the sums of those that have ended."""
        layout = _Layout(self, take)
        sums: dict[int, float] = {}
        waiting: tuple[_Window, Tensor, object] | None = None
        while True:
            window = layout.next()
            launched = None if window is None else self._launch(window, layout)
            # The host adds up one window, and has laid out the next, while a GPU computes.
            if waiting is not None:
                _add_up(*waiting, sums, done)
            elif window is None:
                return
            waiting = None if window is None or launched is None else (window, *launched)

    def width(self, num_active: int) -> int:
        """Choose how many streams a chunk has: on a GPU one of a few numbers, each of which has its graph."""
        if self.device.type == "cpu":
            return num_active
        width = self.num_streams
        while width // NARROWER >= max(num_active, MIN_STREAMS):
            width //= NARROWER
        return width

    def _launch(self, window: _Window, layout: _Layout) -> tuple[Tensor, object]:
        """Start the chunks of a window; give where the results will be, and what tells that they are there."""
        T, C, width = self.num_steps, self.network.num_context, window.word_LB.shape[1]
        chunk = self._chunks.get(width)
        if chunk is None:
            if self.device.type == "cpu":
                self._chunks.clear()  # of any number of widths, each with its states
            chunk = self._chunks[width] = _Chunk(self, width)
        chunk.take_over(layout)
        word_LB, reset_LB = torch.from_numpy(window.word_LB), torch.from_numpy(window.reset_LB)
        if self.device.type == "cuda":
            word_LB, reset_LB = (part.pin_memory().to(self.device, non_blocking=True) for part in (word_LB, reset_LB))
        parts = []
        with float32_products(tf32=self.precision == "tf32"):
            for begin in range(0, window.num_steps, T):
                parts.append(
                    chunk.run(self, word_LB[begin : begin + C + 1 + T], reset_LB[begin : begin + C + T]).clone()
                )
        log_prob_BS = torch.cat(parts).T.contiguous()  # turned here: NumPy takes ten times as long
        if self.device.type == "cpu":
            return log_prob_BS, None
        found_BS = torch.empty(log_prob_BS.shape, dtype=log_prob_BS.dtype, pin_memory=True)
        found_BS.copy_(log_prob_BS, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return found_BS, event


class _Layout:
    """Deals documents out to streams, a window at a time."""

    def __init__(self, scorer: StreamScorer, take: Take) -> None:
        self.scorer, self._take = scorer, take
        self._reading: list[_Reading | None] = []
        C = scorer.network.num_context
        self._last_LB, self._last_reset_CB = np.zeros((C + 1, 0), dtype=np.int64), np.zeros((C, 0), dtype=bool)
        self.before: _Chunk | None = None  # who has the states of the streams
        self.places: list[int] = []  # where each stream was there

    def next(self) -> _Window | None:
        """Lay out the next window: streams go on with what they read, and then take new documents."""
        scorer = self.scorer
        T, C, S = scorer.num_steps, scorer.network.num_context, CHUNKS * scorer.num_steps
        # Of thousands of documents per window each costs the host time: numbers in one list, and no objects.
        segments: list[int] = []
        finished, resets = [], []
        left: list[_Reading | None] = []
        places: list[int] = []
        # Documents are whole in rows of a stream: written so, and turned at once.
        text_BS = np.full((scorer.num_streams, S), END, dtype=np.int32)

        def fill(stream: int, now: _Reading | None) -> _Reading | None:
            """Fill a stream with a document and those after it; give what does not fit."""
            level = 0
            while level < S:
                if now is not None:
                    number, ids, place = now
                elif (taken := self._take()) is not None:
                    (number, ids), place = taken, 0
                    resets.append((C + level, stream))
                else:
                    break
                num_left = len(ids) - place
                end = min(S, level + num_left)
                text_BS[stream, level:end] = ids[place : place + end - level]
                segments.extend((stream, level, end, number))
                now = number, ids, place + end - level
                if end == level + num_left:
                    finished.append(number)
                    now = None
                    if scorer.aligned:
                        end = -(-end // T) * T
                level = end
            return now

        for place, one in enumerate(self._reading):
            if one is not None:
                left.append(fill(len(places), one))
                places.append(place)
        while len(places) < scorer.num_streams:
            num_before = len(segments)
            rest = fill(len(places), None)
            if len(segments) == num_before:
                break
            left.append(rest)
            places.append(-1)
        if not places:
            return None
        width = scorer.width(len(places))
        segment_N4 = np.array(segments, dtype=np.int64).reshape(-1, 4)
        num_steps = -(-int(segment_N4[:, 2].max()) // T) * T
        word_LB = np.full((C + 1 + S, width), END, dtype=np.int64)
        reset_LB = np.zeros((C + S, width), dtype=bool)
        old_B = np.array(places)
        kept_B = np.flatnonzero(old_B >= 0)
        word_LB[: C + 1, kept_B] = self._last_LB[:, old_B[kept_B]]
        reset_LB[:C, kept_B] = self._last_reset_CB[:, old_B[kept_B]]
        word_LB[C + 1 :, : len(text_BS)] = text_BS[:width].T
        if resets:
            reset_LB[tuple(np.array(resets).T)] = True
        self._reading, self.places = left, places
        self._last_LB, self._last_reset_CB = word_LB[S:], reset_LB[S:]
        return _Window(word_LB[: C + 1 + num_steps], reset_LB[: C + num_steps], segment_N4, finished, num_steps)


class _Chunk:
    """T steps of B streams: on a CPU computed as they come, on a GPU captured once and replayed."""

    def __init__(self, scorer: StreamScorer, width: int) -> None:
        network, device, T = scorer.network, scorer.device, scorer.num_steps
        C = network.num_context
        # Not the scorer, which keeps its chunks: graphs in such a cycle would live until garbage is collected.
        self._side = SideStream(device)
        self.state: State = network.initial_state(width)
        self._word_LB = torch.full((C + 1 + T, width), END, dtype=torch.int64, device=device)
        self._reset_LB = torch.zeros(C + T, width, dtype=torch.bool, device=device)
        self._log_prob_TB = torch.zeros(T, width, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        # A body that attends looks at how much it has read, for which the host waits.
        self._num_eager = 0 if device.type == "cuda" and not scorer.aligned else None

    def take_over(self, layout: _Layout) -> None:
        """Take the states of streams from where they were; that of a new one is reset anyway."""
        before, places = layout.before, layout.places
        if before is not self or places != list(range(len(places))):
            kept = [stream for stream, place in enumerate(places) if place >= 0]
            if kept and before is not None:
                to_B = torch.tensor(kept, device=self._side.device)
                from_B = torch.tensor([places[stream] for stream in kept], device=self._side.device)
                for part, old in zip(self.state, before.state, strict=True):
                    part.index_copy_(1, to_B, old.index_select(1, from_B))
        layout.before = self

    def run(self, scorer: StreamScorer, word_LB: Tensor, reset_LB: Tensor) -> Tensor:
        """Compute ln p of the words (T, B) behind the C + 1 first ones; the result is written over by the next call."""
        self._word_LB.copy_(word_LB)
        self._reset_LB.copy_(reset_LB)
        if self._num_eager is None:
            self._compute(scorer)
        elif self._num_eager < NUM_EAGER:
            self._num_eager += 1
            self._side.run(lambda: self._compute(scorer))
        else:
            if self._graph is None:
                self._graph = self._side.capture(lambda: self._compute(scorer))
            self._graph.replay()
        return self._log_prob_TB

    def _compute(self, scorer: StreamScorer) -> None:
        network = scorer.network
        C, output = network.num_context, network.output
        input_LB, target_TB, state = self._word_LB[:-1], self._word_LB[C + 1 :], self.state
        reset_LB: Tensor | None = self._reset_LB
        if scorer.aligned:
            is_new_B, reset_LB = self._reset_LB[0], None
            state = tuple(part.masked_fill(is_new_B.view(1, -1, *[1] * (part.ndim - 2)), 0.0) for part in state)
        casts = scorer.precision == "bf16"
        with torch.autocast(scorer.device.type, dtype=torch.bfloat16, enabled=casts, cache_enabled=False):
            hidden_TBD, after = network(input_LB, state, reset_LB)
            hidden_ND = hidden_TBD.flatten(0, 1)
            score_N = output.scores(hidden_ND, target_TB.reshape(-1, 1)).squeeze(1)
            constant = output.log_normaliser(hidden_ND) if scorer.normalised else output.log_z
        self._log_prob_TB.copy_((score_N - constant).view_as(target_TB))
        for part, new in zip(self.state, after, strict=True):
            part.copy_(new)


def _add_up(window: _Window, log_prob_BS: Tensor, event: object, sums: dict[int, float], done: Done) -> None:
    """Add what a window found to the sums of its documents, and tell of those that ended."""
    if isinstance(event, torch.cuda.Event):
        event.synchronize()
    stream_N, begin_N, end_N, number_N = window.segment_N4.T
    S = log_prob_BS.shape[1]
    edges = np.stack([stream_N * S + begin_N, stream_N * S + end_N], 1).ravel()
    flat = np.append(log_prob_BS.numpy().ravel(), 0.0)  # in float64; an edge may be the end of all
    for number, total in zip(number_N.tolist(), np.add.reduceat(flat, edges)[::2].tolist(), strict=True):
        sums[number] = sums.get(number, 0.0) + total
    if window.finished:
        ended = np.array(window.finished, dtype=np.int64)
        done(ended, np.array([sums.pop(number) for number in window.finished]))
