"""A model opened for documents: blocks of cut texts in, their perplexities out, in order and in bounded memory."""

from __future__ import annotations

import copy
import functools
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.errors import UserError, argument
from bnce.filtering.cutting import CutBlock, Cutter, Fields, WordCutter, open_model
from bnce.filtering.shards import Block
from bnce.filtering.streams import Ids, StreamScorer
from bnce.filtering.writing import Scores, rounded
from bnce.machine.devices import choose_device
from bnce.runs.directory import Run
from bnce.runs.model_file import load_model
from bnce.scoring.loading import MIXTURE_ENDING, load, mixture_components
from bnce.scoring.model import Model
from bnce.scoring.run_model import RunModel

MAX_WAITING = 256  # blocks behind one that is not scored yet, because of a very long document in it
CHECKED_DOCUMENTS = 200

Emit = Callable[[Block, CutBlock, Scores], None]


@dataclass(frozen=True)
class Scoring:
    """How documents are scored; it can be sent to other machines, which open the model themselves."""

    model: str
    normalised: bool | None = None  # None: with the constant Z if the model has one
    spell: bool = False
    precision: str = "float32"
    device: str = "auto"
    fields: Fields = field(default_factory=Fields)

    def described(self) -> dict[str, Any]:
        """Say what decides a perplexity, beside the model."""
        return {"mode": self.mode, "spell": self.spell, "precision": self.precision}

    @property
    def mode(self) -> str:
        """How probabilities are had, as the command line says it."""
        return "auto" if self.normalised is None else "normalised" if self.normalised else "unnormalised"


class Engine:
    """Scores documents with one model."""

    def __init__(self, scoring: Scoring) -> None:
        self.scoring = scoring
        self.streams: StreamScorer | None = None
        self.cut: Cutter | WordCutter
        self.model: Model
        path = os.path.abspath(scoring.model)
        is_file = Path(path).is_file()
        model = self.model = open_model(path) if is_file else load(path, scoring.device)
        if scoring.spell:
            model.refuse_spelling()
        self.is_normalised = not model.self_normalised if scoring.normalised is None else scoring.normalised
        if is_file:
            # Whoever cuts texts scores them, too: KenLM is as quick as that.
            self.cut = WordCutter(path, scoring.fields, self.is_normalised, scoring.spell)
            return
        network = load_model(Run.open(path), str(choose_device(scoring.device)))
        self.streams = StreamScorer(network, normalised=self.is_normalised, precision=scoring.precision)
        self.cut = Cutter(path, model.vocabulary.digest, model.normaliser, scoring.fields, scoring.spell)

    @property
    def probabilities(self) -> str:
        """How probabilities are had: as `Scoring.mode` says, or as the model is when it says auto."""
        if self.model.kind == "n-gram":
            return "n-gram"
        if isinstance(self.model, RunModel) and self.model.network.is_exact:
            return "exact"
        return "normalised" if self.is_normalised else "unnormalised"

    @property
    def device(self) -> str:
        """Where the model is."""
        return self.model.device

    def score_blocks(self, pairs: Iterator[tuple[Block, CutBlock]], emit: Emit) -> None:
        """Score the documents of blocks; `emit` gets the blocks in their order, each once all of it is scored."""
        if self.streams is None:
            for block, cut in pairs:
                emit(block, cut, to_scores(cut, cut.log_prob_N))
            return
        waiting: deque[_Waiting] = deque()
        todo: deque[tuple[int, Ids]] = deque()
        owners: dict[int, tuple[_Waiting, int]] = {}
        num_taken = 0

        def flush() -> None:
            while waiting and not waiting[0].num_left:
                first = waiting.popleft()
                emit(first.block, first.cut, to_scores(first.cut, first.log_prob_N))

        def take() -> tuple[int, Ids] | None:
            nonlocal num_taken
            while not todo:
                if len(waiting) >= MAX_WAITING:
                    return None
                pair = next(pairs, None)
                if pair is None:
                    return None
                one = _Waiting(*pair)
                waiting.append(one)
                for place, ids in one.documents():
                    owners[num_taken] = one, place
                    todo.append((num_taken, ids))
                    num_taken += 1
                flush()
            return todo.popleft()

        def done(number_N: NDArray[np.int64], sum_N: NDArray[np.float64]) -> None:
            for number, total in zip(number_N.tolist(), sum_N.tolist(), strict=True):
                one, place = owners.pop(number)
                one.log_prob_N[place] += total
                one.num_left -= 1
            flush()

        self.streams.score(take, done)

    def score_cut(self, cut: CutBlock) -> Scores:
        """Score documents that are cut."""
        found: list[Scores] = []
        block: Any = None
        self.score_blocks(iter([(block, cut)]), lambda _block, _cut, scores: found.append(scores))
        return found[0]

    def check_precision(self, cut: CutBlock) -> dict[str, float] | None:
        """Compare perplexities with those in float32; None where these are the same."""
        if self.streams is None or self.scoring.precision == "float32" or not len(cut.row_N):
            return None
        plain = copy.copy(self)
        plain.streams = StreamScorer(self.streams.network, normalised=self.is_normalised)
        ratio = self.score_cut(cut).perplexity / plain.score_cut(cut).perplexity
        known = np.abs(ratio[np.isfinite(ratio)] - 1)
        if not len(known):
            return None
        return {"num_documents": len(known), "mean": float(known.mean()), "max": float(known.max())}


class _Waiting:
    """A block whose documents are being scored."""

    def __init__(self, block: Block, cut: CutBlock) -> None:
        self.block, self.cut = block, cut
        self.log_prob_N = cut.log_prob_N.copy()
        self.num_left = int(np.count_nonzero(cut.length_N))

    def documents(self) -> Iterator[tuple[int, Ids]]:
        """Give the documents that have words."""
        assert self.cut.ids is not None
        end_N = np.cumsum(self.cut.length_N)
        for place, (length, end) in enumerate(zip(self.cut.length_N.tolist(), end_N.tolist(), strict=True)):
            if length:
                yield place, self.cut.ids[end - length : end]


def to_scores(cut: CutBlock, log_prob_N: NDArray[np.float64]) -> Scores:
    """Make perplexities of sums: per token, which are words, marks and sentence ends."""
    num_tokens_N = cut.num_words_N + cut.num_ends_N
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        perplexity_N = np.exp(-log_prob_N / num_tokens_N)
        unknown_N = cut.num_unknown_N / cut.num_words_N
    perplexity_N[num_tokens_N == 0] = np.nan
    return Scores(rounded(perplexity_N), cut.num_words_N, rounded(unknown_N))


@functools.lru_cache(maxsize=1)
def open_engine(scoring: Scoring) -> Engine:
    """Open a model once per process."""
    return Engine(scoring)


def check_scoring(scoring: Scoring) -> None:
    """Refuse what contradicts itself before a model is loaded."""
    path = Path(scoring.model)
    if scoring.spell and path.is_file():
        parts = [one for one, _ in mixture_components(path)] if path.suffix == MIXTURE_ENDING else [path]
        for part in parts:
            if part.is_file():
                raise UserError(f"'{part}' is not a run, and only runs have a spelling model.")
    if scoring.precision != "float32" and Path(scoring.model).is_file():
        raise UserError(
            f"'{scoring.model}' is a file, and {argument('precision')} is for runs: leave out {argument('precision')}."
        )
