"""`bnce.DocumentScorer`: texts in, a perplexity for each out. `bnce filter` asks it about blocks of documents.

The context of a word is the whole document before it, and nothing of other documents.

Legend: N documents.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.cutter import Cutter, Tokens
from bnce.engine.network import Mode
from bnce.errors import UserError
from bnce.scoring.loading import load
from bnce.scoring.model import Model
from bnce.scoring.results import add_up
from bnce.scoring.run_model import load_run
from bnce.text.records import whole_characters

NAMES = ("perplexity", "num_words", "unknown_rate")
DIGITS = 6  # of a perplexity: more of them differ between machines

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """What was found of documents; those without words have no tokens and ln p = 0."""

    log_prob_N: Floats
    num_unknown_N: Ints
    num_words_N: Ints
    num_tokens_N: Ints  # with sentence ends

    @functools.cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """What documents get; NaN where there is nothing to tell, as of those without words."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            perplexity_N = np.exp(-self.log_prob_N / self.num_tokens_N)
            unknown_rate_N = self.num_unknown_N / self.num_words_N
        return dict(zip(NAMES, (_rounded(perplexity_N), self.num_words_N, _rounded(unknown_rate_N)), strict=True))

    def lists(self) -> dict[str, list[Any]]:
        """Give the same columns as lists, with None for NaN."""
        return {name: [None if one != one else one for one in part.tolist()] for name, part in self.columns.items()}


class DocumentScorer:
    """Scores documents as `bnce filter` does: texts in, columns out.

    It opens the model when it first scores, so its pickle is small: every process of a pipeline opens the model
    itself. `mode` is "normalised" for the softmax and "unnormalised" for the constant Z; without it the constant is
    used if the model has one.
    """

    is_for_much = False  # whether the model may take longer to open

    def __init__(
        self, model: str | Path, *, mode: Mode | None = None, precision: str = "float32", device: str = "auto"
    ) -> None:
        self.path, self.mode, self.precision, self.device = Path(model).absolute(), mode, precision, device
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
        return self.score(self.cut(given)).lists()

    @functools.cached_property
    def model(self) -> Model:
        """The model, which is opened once."""
        if self.path.is_file():
            return load(self.path, self.device)
        return load_run(self.path, self.device, self.precision, is_for_much=self.is_for_much)

    @functools.cached_property
    def _cutter(self) -> Cutter:
        return Cutter(self.model.normaliser)

    def cut(self, texts: Iterable[str]) -> Tokens:
        """Cut documents into words as the training text was cut; one without words is an empty sentence."""
        return self._cutter.cut([whole_characters(text).replace("\r\n", "\n") for text in texts], "split", True)

    def score(self, text: Tokens) -> Scores:
        """Score documents that are cut, each from its start to its end."""
        whole = replace(text, num_words_S=add_up(text.num_words_S, text.num_sequences_T))
        num_words_N = whole.num_words_S - text.num_sequences_T
        with self._lock:
            found = self.model.log_probs(whole, mode=self.model.choose_mode(self.mode))
        has_words_N = num_words_N > 0
        return Scores(found.totals * has_words_N, found.num_oov, num_words_N, whole.num_words_S * has_words_N)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the model where it is."""
        return {name: getattr(self, name) for name in ("path", "mode", "precision", "device")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())


def _rounded(value_N: Floats) -> Floats:
    """Round to the digits that are written, so that every output has the same numbers."""
    rounded_N = np.array([float(f"{value:.{DIGITS}g}") for value in value_N.tolist()], dtype=np.float64)
    return np.where(np.isfinite(rounded_N), rounded_N, np.nan)
