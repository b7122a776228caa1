"""N-best lists with a new language model's scores, and which hypothesis is the best by them.

Hypotheses of one utterance begin alike: what neighbours share is computed once, many utterances at a time. Only the
output rows of words that occur are read, unless the softmax is asked for.

Legend: U utterances, N hypotheses of all of them, one utterance's after the other's.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.engine.network import Mode
from bnce.errors import UserError
from bnce.rescoring.nbest import AM, OLD_LM, NBest, tell_apart
from bnce.scoring.model import Model
from bnce.scoring.results import Floats
from bnce.scoring.weights import Weights, count_words

# Hypotheses that are scored together: those of whole utterances.
BLOCK_HYPOTHESES = 2048

_COLUMNS = ("utt", "place", "total", "am", "old_lm", "ln_prob", "num_words", "num_oov", "hypothesis")
HIGH_UNKNOWN = 0.2  # the share of unknown words from which the model may not fit the lists

_MAX_SHOWN = 60  # letters of an example


@dataclass(frozen=True)
class Form:
    """How hypotheses came into the model's form: how many changed, and how many of their words it knows."""

    num_changed: int
    num_hypotheses: int
    num_words: int  # as the model reads them
    num_oov: int
    example: tuple[str, str] | None  # a hypothesis before and after

    @property
    def _unknown(self) -> str:
        share = 100 * self.num_oov / max(1, self.num_words)
        return f"{self.num_oov:,} of {self.num_words:,} words ({share:.2f}%) are unknown to the model"

    def judge_unknown(self, name: str, *, refuse: bool) -> str | None:
        """Say that a model knows too few words of a list, and refuse one that knows none: it would say nothing."""
        advice = "give a model of the same language and the same form of text."
        if refuse and self.num_oov == self.num_words > 0:
            raise UserError(f"{name} has no word that the model knows: {advice}")
        return f"{name}: {self._unknown}; {advice}" if self.num_oov > HIGH_UNKNOWN * self.num_words else None

    def __str__(self) -> str:
        if self.example is None:
            return f"All hypotheses are in the form of the training text; {self._unknown}."
        before, after = self.example
        return (
            f"{self.num_changed:,} of {self.num_hypotheses:,} hypotheses were brought into the form of the training "
            f"text, such as '{before}' to '{after}'; {self._unknown}."
        )


@dataclass(frozen=True)
class Scores:
    """Every score of every hypothesis; `lm_N` is ln p of the new language model."""

    nbest: NBest
    lm_N: Floats
    num_oov_N: Floats

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

    @functools.cached_property
    def num_words(self) -> Floats:
        """How many words each hypothesis has, as the recogniser wrote them (N,)."""
        return _flat([count_words(text) for text in utterance.texts] for utterance in self.nbest.utterances)

    @functools.cached_property
    def by_name(self) -> Mapping[str, Floats]:
        """The scores of the list (N,), by name in its order."""
        utterances = self.nbest.utterances
        return {name: _flat(utterance.scores[name] for utterance in utterances) for name in self.nbest.score_names}

    @property
    def others(self) -> Mapping[str, Floats]:
        """The scores of the list that have no weight of their own."""
        return {name: score_N for name, score_N in self.by_name.items() if name not in (AM, OLD_LM)}

    def total(self, weights: Weights) -> Floats:
        """Combine the scores (N,)."""
        given = (self.by_name.get(AM, 0.0), self.by_name.get(OLD_LM, 0.0), self.lm_N)
        counts = (self.num_words, self.num_oov_N, self.log_places)
        total_N: Floats = weights.total(*given, *counts, others=self.by_name)
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
        return tell_apart(list(self.others), _COLUMNS)

    def rows(self, weights: Weights) -> Iterator[dict[str, Any]]:
        """Give every hypothesis with all its scores by column, the best of an utterance first."""
        total_N = self.total(weights)
        for begin, utterance in zip(self.begins.tolist(), self.nbest.utterances, strict=True):
            for place in np.argsort(-total_N[begin : begin + len(utterance.texts)], kind="stable").tolist():
                where = begin + place
                given = {name: float(score_N[where]) for name, score_N in self.by_name.items()}
                yield {
                    "utt": utterance.name,
                    "place": place + 1,
                    "total": float(total_N[where]),
                    "am": given.get(AM),
                    "old_lm": given.get(OLD_LM),
                    **{column: given[name] for name, column in self.other_columns.items()},
                    "ln_prob": float(self.lm_N[where]),
                    "num_words": int(self.num_words[where]),
                    "num_oov": int(self.num_oov_N[where]),
                    "hypothesis": utterance.texts[place],
                }


def score_nbest(
    model: Model, nbest: NBest, advance: Callable[[int], object] = lambda num: None, *, mode: Mode | None = None
) -> tuple[Scores, Form]:
    """Score every hypothesis with the new language model; `advance` is told how many more are done."""
    mode = model.choose_mode(mode)
    # By text, so that equal hypotheses have equal scores, to the bit.
    by_text: dict[str, tuple[list[str], float, int]] = {}
    for texts in in_blocks(utterance.texts for utterance in nbest.utterances):
        words = [model.words(text) for text in texts]
        every = model.score_words(words, mode=mode, share=True)
        for text, own, scores in zip(texts, words, every, strict=True):
            by_text[text] = own, float(scores.log_probs.sum()), int(scores.oov.sum())
        advance(len(texts))
    texts = [text for utterance in nbest.utterances for text in utterance.texts]
    every_words, log_probs, num_oov = zip(*(by_text[text] for text in texts), strict=True)
    changed = [(text.split(), own) for text, own in zip(texts, every_words, strict=True) if own != text.split()]
    num_words = sum(map(len, every_words))
    example = _first_difference(*changed[0]) if changed else None
    form = Form(len(changed), len(texts), num_words, sum(num_oov), example)
    return Scores(nbest, np.array(log_probs), np.array(num_oov, dtype=np.float64)), form


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


def _first_difference(before: Sequence[str], after: Sequence[str]) -> tuple[str, str]:
    """Give two texts from their first difference, and a little before it."""
    pairs = zip(before, after, strict=False)
    first = next((place for place, (old, new) in enumerate(pairs) if old != new), min(len(before), len(after)))
    begin = max(0, first - 1)
    shown = (" ".join(words[begin:]) for words in (before, after))
    old, new = (text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…" for text in shown)
    return old, new


def _flat(parts: Iterable[Sequence[float]]) -> Floats:
    return np.fromiter(itertools.chain.from_iterable(parts), dtype=np.float64)
