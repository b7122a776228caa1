"""N-best lists with a new language model's scores: which hypothesis is the best now, and how wrong it is.

Hypotheses of one utterance begin alike: they go through the network as one tree, in which every prefix is computed
once, many utterances at a time. Only the output rows of words that occur are read, unless the softmax is asked for.

Legend: U utterances, H hypotheses of the longest list; shorter lists are padded, and padding is never the best.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.use.component import Component, Floats
from bnce.use.error_rate import Errors, count_errors, sum_errors
from bnce.use.nbest import NBest, Utterance
from bnce.use.prefixes import TREE_SEQUENCES
from bnce.use.weights import Weights

# Hypotheses that are scored together: those of whole utterances, as many as one tree takes.
BLOCK_HYPOTHESES = TREE_SEQUENCES

FULL_COLUMNS = ("utt", "place", "total", "am", "old_lm", "ln_prob", "num_words", "num_oov", "hypothesis")


@dataclass(frozen=True)
class Scores:
    """Every score of every hypothesis."""

    nbest: NBest
    am_UH: Floats
    old_lm_UH: Floats
    lm_UH: Floats  # ln p of the new language model
    num_words_UH: Floats
    num_oov_UH: Floats
    present_UH: NDArray[np.bool_]

    def total(self, weights: Weights) -> Floats:
        """Combine the scores; padding has the lowest total there is."""
        total_UH = weights.total(self.am_UH, self.old_lm_UH, self.lm_UH, self.num_words_UH, self.num_oov_UH)
        return np.where(self.present_UH, total_UH, -np.inf)

    def best(self, weights: Weights) -> NDArray[np.int64]:
        """Find the best hypothesis of every utterance, the first of equals."""
        place_U: NDArray[np.int64] = self.total(weights).argmax(axis=1)
        return place_U

    def best_texts(self, weights: Weights) -> Iterator[tuple[str, str]]:
        """Give every utterance's name and best hypothesis."""
        for utterance, place in zip(self.nbest.utterances, self.best(weights), strict=True):
            yield utterance.name, utterance.texts[place]

    def rows(self, weights: Weights) -> Iterator[dict[str, Any]]:
        """Give every hypothesis with all its scores under the names of FULL_COLUMNS, the best of an utterance first."""
        total_UH = self.total(weights)
        for number, utterance in enumerate(self.nbest.utterances):
            for place in np.argsort(-total_UH[number, : len(utterance.texts)], kind="stable").tolist():
                where = (number, place)
                yield {
                    "utt": utterance.name,
                    "place": place + 1,
                    "total": float(total_UH[where]),
                    "am": float(self.am_UH[where]) if self.nbest.has_am else None,
                    "old_lm": float(self.old_lm_UH[where]) if self.nbest.has_old_lm else None,
                    "ln_prob": float(self.lm_UH[where]),
                    "num_words": int(self.num_words_UH[where]),
                    "num_oov": int(self.num_oov_UH[where]),
                    "hypothesis": utterance.texts[place],
                }


def score_nbest(model: Component, nbest: NBest, advance: Callable[[int], object] | None = None) -> Scores:
    """Score every hypothesis with the new language model; `advance` is told how many more are done."""
    log_probs, num_oov = [], []
    for block in _blocks(nbest.utterances):
        texts = [text for utterance in block for text in utterance.texts]
        for scores in model.score([model.words(text) for text in texts], share_prefixes=True):
            log_probs.append(float(scores.log_probs.sum()))
            num_oov.append(int(scores.oov.sum()))
        if advance is not None:
            advance(len(texts))
    utterances = nbest.utterances
    lengths = [len(utterance.texts) for utterance in utterances]
    present_UH = np.arange(max(lengths, default=0)) < np.array(lengths, dtype=np.int64).reshape(-1, 1)

    def padded(values: Sequence[float]) -> Floats:
        filled_UH = np.zeros(present_UH.shape)
        filled_UH[present_UH] = values
        return filled_UH

    none = [0.0] * len(log_probs)
    return Scores(
        nbest,
        am_UH=padded(_flat(utterance.am for utterance in utterances) if nbest.has_am else none),
        old_lm_UH=padded(_flat(utterance.old_lm for utterance in utterances) if nbest.has_old_lm else none),
        lm_UH=padded(log_probs),
        num_words_UH=padded([len(text.split()) for utterance in utterances for text in utterance.texts]),
        num_oov_UH=padded(num_oov),
        present_UH=present_UH,
    )


class Judge:
    """The errors of every hypothesis against references, counted once and then looked up."""

    def __init__(self, nbest: NBest, references: Sequence[str]) -> None:
        pairs = zip(nbest.utterances, references, strict=True)
        self._errors = [count_errors(reference, utterance.texts) for utterance, reference in pairs]

    @property
    def num_errors(self) -> NDArray[np.int64]:
        """How many errors each hypothesis has (U, H); padding has none and is never chosen."""
        longest = max(map(len, self._errors), default=0)
        rows = [[one.total for one in errors] + [0] * (longest - len(errors)) for errors in self._errors]
        return np.array(rows, dtype=np.int64).reshape(len(rows), longest)

    def judge(self, place_U: NDArray[np.int64]) -> Errors:
        """Sum up the errors of chosen hypotheses."""
        return sum_errors(errors[place] for errors, place in zip(self._errors, place_U, strict=True))

    def first(self) -> Errors:
        """Sum up the errors of the hypotheses that the lists have first."""
        return self.judge(np.zeros(len(self._errors), dtype=np.int64))

    def oracle(self) -> Errors:
        """Sum up the errors of the hypotheses that have fewest: no weights can give less."""
        return sum_errors(min(errors, key=lambda one: one.total) for errors in self._errors)


def _flat(parts: Any) -> list[float]:
    return list(itertools.chain.from_iterable(parts))


def _blocks(utterances: Sequence[Utterance]) -> Iterator[list[Utterance]]:
    block: list[Utterance] = []
    num_hypotheses = 0
    for utterance in utterances:
        if block and num_hypotheses + len(utterance.texts) > BLOCK_HYPOTHESES:
            yield block
            block, num_hypotheses = [], 0
        block.append(utterance)
        num_hypotheses += len(utterance.texts)
    if block:
        yield block
