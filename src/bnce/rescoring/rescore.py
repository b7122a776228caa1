"""N-best lists with a new language model's scores: which hypothesis is the best now, and how wrong it is.

Hypotheses of one utterance begin alike: they go through the network as one tree, in which every prefix is computed
once, many utterances at a time. A Transformer reads them side by side. Only the output rows of words that occur are
read, unless the softmax is asked for.

Legend: U utterances, N hypotheses of all of them, one utterance's after the other's.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.engine.network import Mode
from bnce.engine.prefix_tree import TREE_TEXTS
from bnce.rescoring.error_rate import Errors, count_errors, sum_errors
from bnce.rescoring.formats.source import AM, OLD_LM, tell_apart
from bnce.rescoring.nbest import NBest
from bnce.scoring.model import Model
from bnce.scoring.results import Floats
from bnce.scoring.weights import Weights, count_words

# Hypotheses that are scored together: those of whole utterances, as many as one tree takes.
BLOCK_HYPOTHESES = TREE_TEXTS

FULL_COLUMNS = ("utt", "place", "total", "am", "old_lm", "ln_prob", "num_words", "num_oov", "hypothesis")


@dataclass(frozen=True)
class Scores:
    """Every score of every hypothesis."""

    nbest: NBest
    am_N: Floats
    old_lm_N: Floats
    lm_N: Floats  # ln p of the new language model
    num_words_N: Floats
    num_oov_N: Floats
    others: Mapping[str, Floats] = field(default_factory=dict)  # by name, in the order of the list

    @functools.cached_property
    def begins(self) -> NDArray[np.int64]:
        """Where each utterance's hypotheses begin (U,)."""
        lengths = [len(utterance.texts) for utterance in self.nbest.utterances]
        return np.cumsum([0, *lengths[:-1]], dtype=np.int64)

    @functools.cached_property
    def log_places(self) -> Floats:
        """The logarithm of each hypothesis' place in its list (N,), 0 for the first."""
        length_U = np.diff(self.begins, append=len(self.lm_N))
        place_N = 1 + np.arange(len(self.lm_N)) - np.repeat(self.begins, length_U)
        return np.log(place_N)

    def total(self, weights: Weights) -> Floats:
        """Combine the scores (N,)."""
        scores_N = (self.am_N, self.old_lm_N, self.lm_N, self.num_words_N, self.num_oov_N, self.log_places)
        total_N: Floats = weights.total(*scores_N, others=self.others)
        return total_N

    def best(self, weights: Weights) -> NDArray[np.int64]:
        """Find the hypothesis with the highest total of every utterance among all (U,), the first of equals."""
        total_N = self.total(weights)
        highest_U = np.maximum.reduceat(total_N, self.begins)
        (place_N,) = np.nonzero(total_N == np.repeat(highest_U, np.diff(self.begins, append=len(total_N))))
        return place_N[np.searchsorted(place_N, self.begins)]

    @functools.cached_property
    def other_columns(self) -> dict[str, str]:
        """How `rows` calls the other scores of the list: `score.total` is one that is called like one of ours."""
        return tell_apart(list(self.others), FULL_COLUMNS)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of what `rows` gives."""
        return (*FULL_COLUMNS[:5], *self.other_columns.values(), *FULL_COLUMNS[5:])

    def best_texts(self, weights: Weights) -> Iterator[tuple[str, str]]:
        """Give every utterance's name and best hypothesis."""
        places = (self.best(weights) - self.begins).tolist()
        for utterance, place in zip(self.nbest.utterances, places, strict=True):
            yield utterance.name, utterance.texts[place]

    def rows(self, weights: Weights) -> Iterator[dict[str, Any]]:
        """Give every hypothesis with all its scores under the names of `columns`, the best of an utterance first."""
        total_N = self.total(weights)
        for begin, utterance in zip(self.begins.tolist(), self.nbest.utterances, strict=True):
            for place in np.argsort(-total_N[begin : begin + len(utterance.texts)], kind="stable").tolist():
                where = begin + place
                yield {
                    "utt": utterance.name,
                    "place": place + 1,
                    "total": float(total_N[where]),
                    "am": float(self.am_N[where]) if self.nbest.has_am else None,
                    "old_lm": float(self.old_lm_N[where]) if self.nbest.has_old_lm else None,
                    **{self.other_columns[name]: float(own_N[where]) for name, own_N in self.others.items()},
                    "ln_prob": float(self.lm_N[where]),
                    "num_words": int(self.num_words_N[where]),
                    "num_oov": int(self.num_oov_N[where]),
                    "hypothesis": utterance.texts[place],
                }


def score_nbest(
    model: Model, nbest: NBest, advance: Callable[[int], object] = lambda num: None, *, mode: Mode | None = None
) -> Scores:
    """Score every hypothesis with the new language model; `advance` is told how many more are done."""
    lists = [utterance.texts for utterance in nbest.utterances]
    found: dict[str, tuple[float, int]] = {}  # by text, so that equal hypotheses have equal scores, to the bit
    for texts in in_blocks(lists):
        words = [model.words(text) for text in texts]
        every = model.score_words(words, mode=mode, share=True)
        for text, scores in zip(texts, every, strict=True):
            found[text] = float(scores.log_probs.sum()), int(scores.oov.sum())
        advance(len(texts))
    log_probs, num_oov = zip(*(found[text] for texts in lists for text in texts), strict=True)
    return put_together(nbest, log_probs, num_oov)


def put_together(nbest: NBest, log_probs: Sequence[float], num_oov: Sequence[int]) -> Scores:
    """Set the new language model's scores of all hypotheses beside those that they came with."""
    utterances = nbest.utterances
    none = np.zeros(len(log_probs))
    return Scores(
        nbest,
        am_N=_flat(utterance.scores[AM] for utterance in utterances) if nbest.has_am else none,
        old_lm_N=_flat(utterance.scores[OLD_LM] for utterance in utterances) if nbest.has_old_lm else none,
        lm_N=np.array(log_probs),
        num_words_N=_flat([count_words(text) for text in utterance.texts] for utterance in utterances),
        num_oov_N=np.array(num_oov, dtype=np.float64),
        others={
            name: _flat(utterance.scores[name] for utterance in utterances)
            for name in nbest.score_names
            if name not in (AM, OLD_LM)
        },
    )


class Judge:
    """The errors of every hypothesis against references, counted once and then looked up."""

    def __init__(self, nbest: NBest, references: Sequence[str]) -> None:
        pairs = zip(nbest.utterances, references, strict=True)
        errors = [count_errors(reference, utterance.texts) for utterance, reference in pairs]
        self._all = list(itertools.chain.from_iterable(errors))
        self.num_errors_N = np.array([one.total for one in self._all], dtype=np.int64)
        self.num_words_U = np.array([own[0].num_words for own in errors], dtype=np.int64)
        # The places among all of those that the lists have first, and of those with the fewest errors.
        self.first_U = np.cumsum([0, *(len(own) for own in errors[:-1])], dtype=np.int64)
        fewest = [min(range(len(own)), key=lambda place: own[place].total) for own in errors]
        self.oracle_U = self.first_U + np.array(fewest, dtype=np.int64)

    def judge(self, place_U: NDArray[np.int64]) -> Errors:
        """Sum up the errors of chosen hypotheses, by their places among all."""
        return sum_errors(self._all[place] for place in place_U.tolist())


def _flat(parts: Iterable[Sequence[float]]) -> Floats:
    return np.fromiter(itertools.chain.from_iterable(parts), dtype=np.float64)


def in_blocks(lists: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    """Put the hypotheses of whole utterances together until they fill a block."""
    block: list[str] = []
    for texts in lists:
        if block and len(block) + len(texts) > BLOCK_HYPOTHESES:
            yield block
            block = []
        block += texts
    if block:
        yield block
