"""`bnce.DocumentScorer`: texts in, a perplexity for each out. `bnce filter` asks it about blocks of documents.

The context of a word is the whole document before it, and nothing of other documents.

Legend: N documents, M their words and sentence ends.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.cutter import Tokens
from bnce.corpus.store import VOCABULARY_FILE
from bnce.corpus.vocabulary import UNK, Vocabulary
from bnce.engine.network import Mode, Query
from bnce.engine.packer import score
from bnce.errors import UserError, unknown_name
from bnce.scoring.loading import MIXTURE_ENDING, load
from bnce.scoring.model import Model
from bnce.scoring.results import add_up
from bnce.scoring.run_model import RunModel, load_run
from bnce.text.normalise import END_WORD, Normaliser
from bnce.text.records import whole_characters

NAMES = ("perplexity", "num_words", "unknown_rate")
DIGITS = 6  # of a perplexity: more of them differ between machines
PRECISIONS = ("float32", "tf32", "bf16")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Cut(NamedTuple):
    """Documents cut into words."""

    sentences: list[list[list[str]]]  # of each document; empty where there are ids
    ids_M: Ints  # one document after the other
    num_words_N: Ints
    num_tokens_N: Ints  # with sentence ends


@dataclass(frozen=True)
class DocumentCutter:
    """Cuts documents as the training text was cut, for a run into ids; it can be sent to worker processes."""

    normaliser: Normaliser
    run: str | None = None
    digest: str = ""  # of the run's words

    def __call__(self, texts: Iterable[str]) -> Cut:
        """Cut documents."""
        whole = (whole_characters(text).replace("\r\n", "\n") for text in texts)
        documents = [[words for line in text.split("\n") for words in self.normaliser(line)] for text in whole]
        num_words_N = np.array([sum(map(len, sentences)) for sentences in documents], dtype=np.int64)
        num_tokens_N = num_words_N + np.array([len(sentences) for sentences in documents], dtype=np.int64)
        if self.run is None:
            return Cut(documents, np.zeros(0, dtype=np.int64), num_words_N, num_tokens_N)
        words = (word for sentences in documents for words in sentences for word in (*words, END_WORD))
        return Cut([], _vocabulary(self.run, self.digest).encode(words), num_words_N, num_tokens_N)


@functools.lru_cache(maxsize=1)
def _vocabulary(run: str, digest: str) -> Vocabulary:
    return Vocabulary.read(Path(run) / VOCABULARY_FILE)


@dataclass(frozen=True)
class Scores:
    """What was found of documents."""

    log_prob_N: Floats
    num_unknown_N: Ints
    num_words_N: Ints
    num_tokens_N: Ints

    @functools.cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """What documents get; NaN for those without words."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            perplexity_N = np.exp(-self.log_prob_N / self.num_tokens_N)
            unknown_rate_N = self.num_unknown_N / self.num_words_N
        return dict(zip(NAMES, (_rounded(perplexity_N), self.num_words_N, _rounded(unknown_rate_N)), strict=True))


class DocumentScorer:
    """Scores documents as `bnce filter` does: texts in, columns out.

    It opens the model when it first scores, so its pickle is small: every process of a pipeline opens the model
    itself. `mode` is "normalised" for the softmax and "unnormalised" for the constant Z; without it the constant is
    used if the model has one.
    """

    def __init__(
        self, model: str | Path, *, mode: Mode | None = None, precision: str = "float32", device: str = "auto"
    ) -> None:
        if precision not in PRECISIONS:
            raise unknown_name("precision", precision, PRECISIONS)
        self.path, self.asked, self.precision, self.device = Path(model).absolute(), mode, precision, device
        if precision != "float32" and self.path.is_file():
            raise UserError(f"'{model}' is a file, and the precision is for runs: leave it out.")
        self._lock = threading.Lock()  # a network serves one thread at a time

    def __call__(self, texts: Iterable[str | None]) -> dict[str, list[Any]]:
        """Give perplexity, num_words and unknown_rate of every document; None for one without words.

        Many documents at once are quicker than one by one: they run side by side.
        """
        if isinstance(texts, str):
            raise UserError("The documents are one string: give a list of them, such as ['a document'].")
        given = ["" if text is None else text for text in texts]
        for text in given:
            if not isinstance(text, str):
                raise UserError(f"A document is {text!r:.60}: give a string.")
        columns = self.score(self.cutter(given)).columns
        return {name: [None if one != one else one for one in part.tolist()] for name, part in columns.items()}

    @functools.cached_property
    def model(self) -> Model:
        """The model, which is opened once."""
        if self.path.is_file():
            return load(self.path, self.device)
        return load_run(self.path, self.device, self.precision)

    @property
    def is_ngram(self) -> bool:
        """Whether the model, which need not be open, is an n-gram model, which has but one mode."""
        return self.path.is_file() and self.path.suffix != MIXTURE_ENDING

    @functools.cached_property
    def cutter(self) -> DocumentCutter:
        """What cuts documents for the model."""
        model = self.model
        if isinstance(model, RunModel):
            return DocumentCutter(model.normaliser, str(self.path), model.vocabulary.digest)
        return DocumentCutter(model.normaliser)

    @functools.cached_property
    def mode(self) -> Mode:
        """How probabilities are had."""
        return self.model.choose_mode(self.asked)

    def score(self, cut: Cut) -> Scores:
        """Score documents: side by side by a run, one after the other by a model of another kind."""
        with self._lock:
            found = self._score_ids(cut) if self.cutter.run is not None else self._score_words(cut)
        return Scores(*found, cut.num_words_N, cut.num_tokens_N)

    def _score_ids(self, cut: Cut) -> tuple[Floats, Ints]:
        assert isinstance(self.model, RunModel)
        end_N, network = np.cumsum(cut.num_tokens_N), self.model.network
        is_exact = self.mode == "normalised"
        values = score(network, np.split(cut.ids_M, end_N)[:-1], Query(log_z=is_exact))
        log_prob_M = values.log_probs(None if is_exact else network.log_z)
        return add_up(log_prob_M, cut.num_tokens_N), add_up((cut.ids_M == UNK).astype(np.int64), cut.num_tokens_N)

    def _score_words(self, cut: Cut) -> tuple[Floats, Ints]:
        sentences = Tokens.of((words for document in cut.sentences for words in document), self.model.numbering)
        scores = self.model.log_probs(replace(sentences, num_words_S=cut.num_tokens_N), mode=self.mode)
        return scores.totals, scores.num_oov

    def __getstate__(self) -> dict[str, Any]:
        """Leave the model where it is."""
        return {name: getattr(self, name) for name in ("path", "asked", "precision", "device")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())


def _rounded(value_N: Floats) -> Floats:
    """Round to the digits that are written, so that every output has the same numbers."""
    return np.array([float(f"{value:.{DIGITS}g}") for value in value_N.tolist()], dtype=np.float64)
