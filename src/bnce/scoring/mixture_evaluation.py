"""Perplexity of a mixture, or of an n-gram model, on sentences that each start afresh: PPLf, PPLn, and its parts'.

PPLf has all runs with the softmax. Then probabilities sum to one where all parts know the same words; where they do
not, a word that one of them does not know has the probability of that one's `<unk>`, which is too high. PPLn has all
runs with their constants Z, and sums to one nearly; there is none where a run was trained with the softmax, and none of
an n-gram model, which has no constant.

Legend: K components.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bnce.errors import UserError
from bnce.scoring.component import Component, WordScores, sentence_blocks
from bnce.scoring.mixture import Mixture


@dataclass
class _Sum:
    """ln p of a text, and of its words that are no OOVs."""

    total: float = 0.0
    total_no_oov: float = 0.0

    def add(self, scores: WordScores, oov: Any) -> None:
        self.total += float(scores.log_probs.sum())
        self.total_no_oov += float(scores.log_probs[~oov].sum())


@dataclass
class _Mode:
    """The sums of one mode: the mixture's and each component's."""

    component: Component
    mixed: _Sum = field(default_factory=_Sum)
    parts: list[_Sum] = field(default_factory=list)

    def add(self, block: Sequence[list[str]]) -> list[list[WordScores]]:
        """Score a block of sentences; gives what each component says of each sentence."""
        parts = components_of(self.component)
        self.parts = self.parts or [_Sum() for _ in parts]
        scores_K = [part.score(block) for part in parts]
        for scores in zip(*scores_K, strict=True):
            mixed = self.component.combine(scores) if isinstance(self.component, Mixture) else scores[0]
            self.mixed.add(mixed, mixed.oov)
            for total, one in zip(self.parts, scores, strict=True):
                total.add(one, mixed.oov)
        return scores_K


def components_of(component: Component) -> list[Component]:
    """List what a mixture is made of; anything else is made of itself."""
    return component.components if isinstance(component, Mixture) else [component]


def evaluate_component(
    component: Component, sentences: Iterable[list[str]], progress: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Evaluate on sentences of words; `progress` is told of tokens done. Keys are those of a run's evaluation."""
    exact = _Mode(component.in_mode(normalised=True))
    has_constant = component.has_constant and component.self_normalised
    constant = _Mode(component.in_mode(normalised=False)) if has_constant else None
    num_tokens = num_oov = num_sentences = 0
    vocabularies_differ = False
    for block in sentence_blocks(sentences):
        scores_K = exact.add(block)
        if constant is not None:
            constant.add(block)
        for scores in zip(*scores_K, strict=True):
            oov_KN = np.stack([one.oov for one in scores])
            vocabularies_differ |= bool((oov_KN != oov_KN[0]).any())
            num_oov += int(oov_KN.all(axis=0).sum())
        num_sentences += len(block)
        num_tokens += sum(map(len, block)) + len(block)
        if progress is not None:
            progress(num_tokens)
    if not num_tokens:
        raise UserError("There is nothing to evaluate: the text has no sentence.")
    num_known = num_tokens - num_oov

    def of(mode: _Mode | None) -> tuple[float | None, float | None, float | None]:
        if mode is None:
            return None, None, None
        mixed = mode.mixed
        perplexities = _perplexity(mixed.total, num_tokens), _perplexity(mixed.total_no_oov, num_known)
        return *perplexities, mixed.total / math.log(10)

    (ppl_n, ppl_n_no_unk, log10_n), (ppl_f, ppl_f_no_unk, log10_f) = of(constant), of(exact)
    weights = component.weights_K.tolist() if isinstance(component, Mixture) else [1.0]
    parts = [
        {"path": part.name, "weight": weight, "ppl_f": _perplexity(total.total, num_tokens)}
        for part, weight, total in zip(components_of(component), weights, exact.parts, strict=True)
    ]
    return {
        "ppl_n": ppl_n,
        "ppl_f": ppl_f,
        "ppl_n_no_unk": ppl_n_no_unk,
        "ppl_f_no_unk": ppl_f_no_unk,
        # There is no one constant, and no one normaliser.
        "log_z": None,
        "log_z_mean": None,
        "log_z_std": None,
        "log10_prob_n": log10_n,
        "log10_prob_f": log10_f,
        "num_tokens": num_tokens,
        "num_oov": num_oov,
        "num_sentences": num_sentences,
        "context": "sentence",
        "vocabularies_differ": vocabularies_differ,
        "components": parts,
    }


def _perplexity(log_prob: float, num_tokens: int) -> float | None:
    if not num_tokens:
        return None
    try:
        return math.exp(-log_prob / num_tokens)
    except OverflowError:
        return math.inf
