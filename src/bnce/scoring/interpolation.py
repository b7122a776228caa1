"""A text as the parts of a mixture score it, and the mixture: its weights by EM, and perplexities.

Where vocabularies differ, the weights are found on the words that every component knows.

PPLf has all runs with the softmax. Then probabilities sum to one where all components know the same words; where they
do not, a word that one of them does not know has the probability of that one's `<unk>`, which is too high. PPLn has all
runs with their constants Z, and sums to one nearly; there is none where a run was trained with the softmax, and none of
an n-gram model, which has no constant.

Legend: K components, N words and sentence ends of a text. Logarithms are natural.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.errors import UserError
from bnce.evaluation.breakdown import perplexity
from bnce.scoring.mixture import MixtureModel, mix
from bnce.scoring.model import Model, Words, sentence_blocks
from bnce.scoring.scored import Floats

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


@dataclass(frozen=True)
class TextScores:
    """A text as every component scores it."""

    log_prob_KN: Floats
    oov_KN: NDArray[np.bool_]

    @classmethod
    def of(cls, components: Sequence[Model], sentences: Sequence[Words], *, normalised: bool = False) -> TextScores:
        """Score a text by each component."""
        if not sentences:
            raise UserError("The text has no sentence: give a text with words.")
        scores_K = [component.score_words(sentences, normalised=normalised) for component in components]
        return cls(
            np.stack([np.concatenate([one.log_probs for one in scores]) for scores in scores_K]),
            np.stack([np.concatenate([one.oov for one in scores]) for scores in scores_K]),
        )

    @property
    def vocabularies_differ(self) -> bool:
        """Whether some word is known to one component and unknown to another."""
        return bool((self.oov_KN != self.oov_KN[0]).any())

    @property
    def known(self) -> NDArray[np.bool_]:
        """The words that every component knows."""
        known_N: NDArray[np.bool_] = self.oov_KN.sum(axis=0) == 0
        return known_N

    @property
    def comparable(self) -> Floats:
        """The words whose probabilities are about the same event: all, or where vocabularies differ the known ones."""
        return self.log_prob_KN[:, self.known] if self.vocabularies_differ else self.log_prob_KN

    def report(self, weight_K: Floats) -> dict[str, Any]:
        """Give perplexities per word and sentence end, of each component and of the mixture, with OOV and without."""
        both_KN = np.vstack([self.log_prob_KN, mix(self.log_prob_KN, weight_K)])
        num_known = int(self.known.sum())
        *components, mixture = [
            {
                "ppl": perplexity(log_prob_N.sum(), len(log_prob_N)),
                "ppl_known": perplexity(log_prob_N[self.known].sum(), num_known),
            }
            for log_prob_N in both_KN
        ]
        return {
            "num_tokens": self.log_prob_KN.shape[1],
            "num_known": num_known,
            "vocabularies_differ": self.vocabularies_differ,
            "components": components,
            "mixture": mixture,
        }


def components_of(model: Model) -> list[Model]:
    """List what a mixture is made of; anything else is made of itself."""
    return model.components if isinstance(model, MixtureModel) else [model]


def evaluate_sentences(
    model: Model, sentences: Iterable[list[str]], progress: Callable[[int], None] = lambda num_tokens: None
) -> dict[str, Any]:
    """Evaluate a mixture or an n-gram model on sentences of words that each start afresh.

    `progress` is told of tokens done. Keys are those of a run's evaluation.
    """
    parts = components_of(model)
    modes = [True, False] if model.has_constant and model.self_normalised else [True]  # normalised, and with Z
    totals, totals_no_oov = dict.fromkeys(modes, 0.0), dict.fromkeys(modes, 0.0)
    totals_K = [0.0] * len(parts)
    num_tokens = num_oov = num_sentences = 0
    vocabularies_differ = False
    for block in sentence_blocks(sentences):
        for normalised in modes:
            scores_K = [part.score_words(block, normalised=normalised) for part in parts]
            for one in model.combine(scores_K) if isinstance(model, MixtureModel) else scores_K[0]:
                totals[normalised] += float(one.log_probs.sum())
                totals_no_oov[normalised] += float(one.log_probs[~one.oov].sum())
            if normalised:
                for scores in zip(*scores_K, strict=True):
                    totals_K = [total + float(one.log_probs.sum()) for total, one in zip(totals_K, scores, strict=True)]
                    oov_KN = np.stack([one.oov for one in scores])
                    vocabularies_differ |= bool((oov_KN != oov_KN[0]).any())
                    num_oov += int(oov_KN.all(axis=0).sum())
        num_sentences += len(block)
        num_tokens += sum(map(len, block)) + len(block)
        progress(num_tokens)
    if not num_tokens:
        raise UserError("The text has no sentence to evaluate: give a text with words.")
    ppl = {mode: perplexity(total, num_tokens) for mode, total in totals.items()}
    ppl_no_oov = {mode: perplexity(total, num_tokens - num_oov) for mode, total in totals_no_oov.items()}
    log10_probs = {mode: total / math.log(10) for mode, total in totals.items()}
    weights = model.weights_K.tolist() if isinstance(model, MixtureModel) else [1.0]
    return {
        "ppl_n": ppl.get(False),
        "ppl_f": ppl[True],
        "ppl_n_no_unk": ppl_no_oov.get(False),
        "ppl_f_no_unk": ppl_no_oov[True],
        # There is no one constant, and no one normaliser.
        "log_z": None,
        "log_z_mean": None,
        "log_z_std": None,
        "log10_prob_n": log10_probs.get(False),
        "log10_prob_f": log10_probs[True],
        "num_tokens": num_tokens,
        "num_oov": num_oov,
        "num_sentences": num_sentences,
        "context": "sentence",
        "by_sentence": {"ppl_n": ppl.get(False), "ppl_f": ppl[True]},  # where a run has them
        "vocabularies_differ": vocabularies_differ,
        "components": [
            {"path": part.name, "weight": weight, "ppl_f": perplexity(total, num_tokens)}
            for part, weight, total in zip(parts, weights, totals_K, strict=True)
        ],
    }
