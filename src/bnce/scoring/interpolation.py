"""A text as the parts of a mixture score it, and the mixture: its weights by EM, and perplexities.

Where vocabularies differ, the weights are found on the words that every component knows.

PPLf has all runs with the softmax. Then probabilities sum to one where all components know the same words; where they
do not, a word that one of them does not know has the probability of that one's `<unk>`, which is too high. PPLn has all
runs with their constants Z, and sums to one nearly; there is none where a run was trained with the softmax, and none of
an n-gram model, which has no constant.

Legend: K components, N words and sentence ends of a text. Logarithms are natural.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bnce.corpus.cutter import Tokens
from bnce.engine.network import Mode
from bnce.errors import UserError
from bnce.evaluation.breakdown import perplexity
from bnce.scoring.mixture import MixtureModel, mix
from bnce.scoring.model import Model
from bnce.scoring.results import LN_10, Bools, Floats, Totals, WordScores

# EM goes on until no weights at all could gain more than this, in nats a word.
MAX_GAIN = 1e-5
MAX_ROUNDS = 5000


def find_weights(log_prob_KN: Floats) -> Floats:
    """Find the weights with the highest likelihood by EM, from equal ones; words without any probability are left out.

    The likelihood has one summit, so that the start decides nothing.
    """
    log_prob_KN = log_prob_KN[:, log_prob_KN.max(axis=0, initial=-np.inf) > -np.inf]
    weight_K: Floats = np.full(len(log_prob_KN), 1 / len(log_prob_KN))
    if not log_prob_KN.shape[1]:
        raise UserError("The text to find the weights on has no word that every component knows: give another text.")
    # A factor a word changes nothing, and keeps the likeliest component from vanishing.
    prob_KN = np.exp(log_prob_KN - log_prob_KN.max(axis=0))
    for _ in range(MAX_ROUNDS):
        # How much likelier each component makes a word than the mixture does, on average: EM's factor. The logarithm of
        # the largest bounds what is left to gain, for the likelihood is concave and a mean of logarithms is below that
        # of the mean.
        ratio_K = prob_KN @ (1 / (weight_K @ prob_KN)) / prob_KN.shape[1]
        if float(np.log(ratio_K.max())) < MAX_GAIN:
            break
        weight_K = weight_K * ratio_K
    weight_K /= weight_K.sum()
    return weight_K


class TextScores(NamedTuple):
    """A text as every component scores it."""

    log_prob_KN: Floats
    oov_KN: Bools

    @classmethod
    def of(cls, components: Sequence[Model], text: Tokens, mode: Mode) -> TextScores:
        """Score a text by each component."""
        scores_K = [one.log_probs(text, mode=mode) for one in components]
        return cls(np.stack([one.log_prob_N for one in scores_K]), np.stack([one.oov_N for one in scores_K]))

    @property
    def vocabularies_differ(self) -> bool:
        """Whether some word is known to one component and unknown to another."""
        return bool((self.oov_KN != self.oov_KN[0]).any())

    @property
    def known(self) -> Bools:
        """The words that every component knows."""
        known_N: Bools = ~np.logical_or.reduce(self.oov_KN)
        return known_N

    @property
    def comparable(self) -> Floats:
        """The words whose probabilities are about the same event: all, or where vocabularies differ the known ones."""
        return self.log_prob_KN[:, self.known] if self.vocabularies_differ else self.log_prob_KN

    def report(self, weight_K: Floats) -> dict[str, Any]:
        """Give perplexities per word and sentence end, of each component and of the mixture, with OOV and without."""
        *components, mixture = [
            {"ppl": _perplexity(log_prob_N), "ppl_known": _perplexity(log_prob_N[self.known])}
            for log_prob_N in np.vstack([self.log_prob_KN, mix(self.log_prob_KN, weight_K)])
        ]
        return {
            "num_tokens": self.log_prob_KN.shape[1],
            "num_known": int(self.known.sum()),
            "vocabularies_differ": self.vocabularies_differ,
            "components": components,
            "mixture": mixture,
        }


def _perplexity(log_prob_N: Floats) -> float | None:
    return perplexity(float(log_prob_N.sum()), len(log_prob_N))


def components_of(model: Model) -> list[Model]:
    """List what a mixture is made of; anything else is made of itself."""
    return model.components if isinstance(model, MixtureModel) else [model]


def evaluate_any(
    model: Model, texts: Iterable[Tokens], progress: Callable[[int], None] = lambda num_tokens: None
) -> dict[str, Any]:
    """Evaluate a mixture or an n-gram model on sentences that each start afresh, which come in blocks.

    `progress` is told of tokens done. Keys are those of a run's evaluation.
    """
    parts = components_of(model)
    weight_K = model.weights_K if isinstance(model, MixtureModel) else np.ones(1)
    # With the softmax, and where there are constants with them.
    modes: dict[str, Mode] = {"f": "normalised"}
    if model.choose_mode(None) == "unnormalised":
        modes["n"] = "unnormalised"
    totals, total_K = {name: Totals() for name in modes}, np.zeros(len(parts))
    vocabularies_differ = False
    for text in texts:
        for name, mode in modes.items():
            scores = TextScores.of(parts, text, mode)
            log_prob_N, oov_N = mix(scores.log_prob_KN, weight_K), np.logical_and.reduce(scores.oov_KN)
            totals[name].add(WordScores(text, log_prob_N, oov_N, np.zeros_like(log_prob_N), mode).sums())
            if mode == "normalised":
                total_K += scores.log_prob_KN.sum(axis=1)
                vocabularies_differ |= scores.vocabularies_differ
        progress(totals["f"].num_tokens)
    every = totals["f"]
    if not every.num_tokens:
        raise UserError("The text has no sentence to evaluate: give a text with words.")
    # There is no one constant, and no one normaliser.
    figures: dict[str, Any] = dict.fromkeys(
        ("ppl_n", "ppl_n_no_unk", "log10_prob_n", "log_z", "log_z_mean", "log_z_std")
    )
    for name, own in totals.items():
        perplexities = own.perplexities()
        figures[f"ppl_{name}"], figures[f"ppl_{name}_no_unk"] = perplexities["ppl"], perplexities["ppl_no_oov"]
        figures[f"log10_prob_{name}"] = own.log_prob / LN_10
    return {
        **figures,
        "num_tokens": every.num_tokens,
        "num_oov": every.num_oov,
        "num_sentences": every.num_sentences,
        "context": "sentence",
        "by_sentence": {name: figures[name] for name in ("ppl_n", "ppl_f")},  # where a run has them
        "vocabularies_differ": vocabularies_differ,
        "components": [
            {"path": part.name, "weight": weight, "ppl_f": perplexity(total, every.num_tokens)}
            for part, weight, total in zip(parts, weight_K.tolist(), total_K.tolist(), strict=True)
        ],
    }
