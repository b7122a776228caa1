"""Perplexities of documents for pipelines in Python, which bring the documents and take the scores: no files."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bnce.errors import UserError
from bnce.filtering.cutting import CutBlock, whole_text
from bnce.filtering.engine import Engine, Scoring, check_scoring
from bnce.filtering.writing import Form

NAMES = Form().names
_process = os.getpid()


class DocumentScorer:
    """Scores documents as `bnce filter` does: texts in, columns out.

    It opens the model when it first scores, so its pickle is small: every process of a pipeline opens the model
    itself. `normalised` is true for the softmax and false for the constant Z; without it the constant is used if the
    model has one.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        normalised: bool | None = None,
        spell: bool = False,
        precision: str = "float32",
        device: str = "auto",
    ) -> None:
        self.scoring = Scoring(str(Path(model).absolute()), normalised, spell, precision, device)
        check_scoring(self.scoring)
        self._engine: Engine | None = None
        self._lock = threading.Lock()

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
        _use_threads_after_a_fork()
        with self._lock:
            if self._engine is None:
                self._engine = Engine(self.scoring)
            figures = self._engine.cut.cut(list(map(whole_text, given)))
            scores = self._engine.score_cut(CutBlock(np.arange(len(given)), *figures, None, []))
        columns = [[None if number != number else number for number in part.tolist()] for part in scores]
        return dict(zip(NAMES, columns, strict=True))

    def __getstate__(self) -> dict[str, Any]:
        """Leave the model where it is."""
        return {"scoring": self.scoring}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._engine, self._lock = None, threading.Lock()


def _use_threads_after_a_fork() -> None:
    """Compute with one thread in a forked process: the others stayed behind, and PyTorch would wait for them."""
    global _process
    if _process != os.getpid():
        import torch

        torch.set_num_threads(1)
        _process = os.getpid()
