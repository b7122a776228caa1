"""Models mixed word by word, p(word) = Σ weight · p_component(word), with weights that EM finds on a text.

A word that a component does not know has the probability of that component's `<unk>`, which stands for all its unknown
words at once. So where vocabularies differ, probabilities of such words are about different events: they are too high,
and the weights are found without them. The mixture counts a word as OOV where no component knows it.

Legend: K components, N words and sentence ends of a text. Logarithms are natural.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import Vocabulary
from bnce.errors import UserError
from bnce.ngrams.arpa import AS_IT_STANDS
from bnce.scoring.component import Component, Context, Floats, Words, WordScores

# EM goes on until no weights at all could gain more than this, in nats a word.
MAX_GAIN = 1e-5
MAX_ROUNDS = 5000


class Mixture(Component):
    """Several components as one."""

    def __init__(self, components: Sequence[Component], weights: Sequence[float], name: str = "mixture") -> None:
        if not components or len(components) != len(weights):
            raise UserError(
                f"A mixture of {len(components)} components with {len(weights)} weights: give each one weight."
            )
        if not all(0 <= weight <= 1 for weight in weights) or abs(sum(weights) - 1) > 1e-3:
            shown = ", ".join(f"{weight:g}" for weight in weights)
            raise UserError(f"The weights of the mixture are {shown}: they must be from 0 to 1 and sum to 1.")
        self.components, self.name = list(components), name
        self.weights_K = np.asarray(weights, dtype=np.float64) / sum(weights)
        self.normaliser = shared_normaliser(components)

    def score(self, sentences: Sequence[Words], share_prefixes: bool = False) -> list[WordScores]:
        """Score sentences by all components, and mix what they give."""
        scores_K = [component.score(sentences, share_prefixes) for component in self.components]
        return [self.combine(scores) for scores in zip(*scores_K, strict=True)]

    def start(self) -> Context:
        """Give what each component remembers at the start."""
        return tuple(component.start() for component in self.components)

    def score_after(self, contexts: Sequence[Context], sentences: Sequence[Words]) -> list[WordScores]:
        """Score sentences by all components, each after its own contexts, and mix what they give."""
        contexts_K = list(zip(*contexts, strict=True)) or [()] * len(self.components)
        scores_K = [
            component.score_after(own, sentences) for component, own in zip(self.components, contexts_K, strict=True)
        ]
        return [self.combine(scores) for scores in zip(*scores_K, strict=True)]

    def read(self, contexts: Sequence[Context], sentences: Sequence[Words]) -> list[Context]:
        """Let every component read the sentences."""
        contexts_K = list(zip(*contexts, strict=True)) or [()] * len(self.components)
        after_K = [component.read(own, sentences) for component, own in zip(self.components, contexts_K, strict=True)]
        return list(zip(*after_K, strict=True))

    def begin_document(self) -> None:
        """Let every component forget."""
        for component in self.components:
            component.begin_document()

    @property
    def vocabulary(self) -> Vocabulary:
        """The words of the first run, or where there is none of the first n-gram model."""
        return next((one for one in self.components if one.has_constant), self.components[0]).vocabulary

    @property
    def self_normalised(self) -> bool:
        """Whether all runs in it do without the softmax."""
        return all(component.self_normalised for component in self.components)

    @property
    def has_constant(self) -> bool:
        """Whether there is a run in it."""
        return any(component.has_constant for component in self.components)

    def in_mode(self, normalised: bool, carry: bool = False) -> Mixture:
        """Give the same mixture with its runs in that mode."""
        components = [component.in_mode(normalised, carry) for component in self.components]
        return Mixture(components, self.weights_K.tolist(), self.name)

    def advance(self, context: Context, word: str) -> Context:
        """Let every component go on by a word."""
        return tuple(component.advance(own, word) for component, own in zip(self.components, context, strict=True))

    def next_log_probs(self, context: Context, words: Words) -> Floats:
        """Mix the probabilities of each of these words."""
        pairs = zip(self.components, context, strict=True)
        return mix(np.stack([component.next_log_probs(own, words) for component, own in pairs]), self.weights_K)

    def ids(self, words: Words) -> list[int]:
        """Give the numbers that the first component with some has."""
        found = (component.ids(words) for component in self.components)
        return next((ids for ids in found if any(ids)), [0] * (len(words) + 1))

    def combine(self, scores: Sequence[WordScores]) -> WordScores:
        """Mix what the components say of one sentence."""
        return WordScores(
            mix(np.stack([one.log_probs for one in scores]), self.weights_K),
            np.logical_and.reduce([one.oov for one in scores]),
            [max(lengths) for lengths in zip(*(one.ngram_lengths for one in scores), strict=True)],
        )


def shared_normaliser(components: Sequence[Component]) -> Any:
    """Find the one way in which all components read text; n-gram models take words as the runs cut them."""
    found = {component.normaliser: component.name for component in components if component.normaliser != AS_IT_STANDS}
    if len(found) > 1:
        first, second = list(found.values())[:2]
        raise UserError(
            f"'{first}' and '{second}' cut text into words in different ways: mix runs of corpora that were prepared "
            "with the same options."
        )
    return next(iter(found), AS_IT_STANDS)


def mix(log_prob_KN: Floats, weight_K: Floats) -> Floats:
    """Compute ln Σ weight · p without leaving the logarithms."""
    with np.errstate(divide="ignore"):
        weighted_KN = log_prob_KN + np.log(weight_K)[:, None]
    mixed: Floats = np.logaddexp.reduce(weighted_KN, axis=0)
    return mixed


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
    def of(cls, components: Sequence[Component], sentences: Sequence[Words]) -> TextScores:
        """Score a text by each component."""
        if not sentences:
            raise UserError("The text has no sentence: give one with words in it.")
        scores_K = [component.score(sentences) for component in components]
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
        *components, mixture = [
            {"ppl": _perplexity(log_prob_N), "ppl_known": _perplexity(log_prob_N[self.known])} for log_prob_N in both_KN
        ]
        return {
            "num_tokens": self.log_prob_KN.shape[1],
            "num_known": int(self.known.sum()),
            "vocabularies_differ": self.vocabularies_differ,
            "components": components,
            "mixture": mixture,
        }


def _perplexity(log_prob_N: Floats) -> float | None:
    if not len(log_prob_N):
        return None
    with np.errstate(over="ignore"):
        return float(np.exp(-log_prob_N.mean()))
