"""Models mixed word by word: p(word) = Σ weight · p_component(word).

A word that a component does not know has the probability of that component's `<unk>`, which stands for all its unknown
words at once. So where vocabularies differ, probabilities of such words are about different events, and too high. With
`spell` they are about the word itself, whichever words a component knows. The mixture counts a word as OOV where no
component knows it. The next word is one of the first run's words, or without a run of the first n-gram model's.

Legend: K components, N words and sentence ends of a text. Logarithms are natural.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bnce.corpus.vocabulary import Vocabulary
from bnce.errors import UserError
from bnce.ngrams.arpa import AS_IT_STANDS
from bnce.scoring.given import word_lists
from bnce.scoring.model import Model, Reader, State, Words
from bnce.scoring.scored import Floats, WordScores
from bnce.text.normalise import Normaliser


class MixtureReader(Reader):
    """Lets every component read the text in its own way."""

    model: MixtureModel

    def __init__(self, model: MixtureModel, normalised: bool, carry: bool, spell: bool) -> None:
        super().__init__(model, normalised, spell)
        self._readers = [
            component.reader(normalised=normalised, carry=carry, spell=spell) for component in model.components
        ]

    def score(self, sentences: Sequence[Words]) -> list[WordScores]:
        """Mix what the components say of the next sentences."""
        return self.model.combine([reader.score(sentences) for reader in self._readers])

    def begin_document(self) -> None:
        """Let every component forget."""
        for reader in self._readers:
            reader.begin_document()


class MixtureModel(Model):
    """Several models as one."""

    kind = "mixture"

    def __init__(self, components: Sequence[Model], weights: Sequence[float], name: str = "mixture") -> None:
        if not components or len(components) != len(weights):
            raise UserError(
                f"The mixture has {len(components)} components but {len(weights)} weights: give one weight per "
                "component."
            )
        if not all(0 <= weight <= 1 for weight in weights) or abs(sum(weights) - 1) > 1e-3:
            shown = ", ".join(f"{weight:g}" for weight in weights)
            raise UserError(f"The weights of the mixture are {shown}: they must be from 0 to 1 and sum to 1.")
        self.components, self.name = list(components), name
        self.weights_K = np.asarray(weights, dtype=np.float64) / sum(weights)
        self.normaliser = shared_normaliser(components)
        self._first = next((one for one in components if one.has_constant), components[0])
        self.has_constant = any(one.has_constant for one in components)
        self.device = self._first.device

    @property
    def vocabulary(self) -> Vocabulary:
        """The words of the first run, or where there is none of the first n-gram model."""
        return self._first.vocabulary

    @property
    def vocab_size(self) -> int | None:
        """How many words these are."""
        return self._first.vocab_size

    @property
    def self_normalised(self) -> bool:
        """Whether all runs in it are self-normalised."""
        return all(component.self_normalised for component in self.components)

    def refuse_unnormalised(self) -> None:
        """Refuse unnormalised probabilities if a run in it was trained with the softmax."""
        for component in self.components:
            component.refuse_unnormalised()

    def refuse_spelling(self) -> None:
        """Refuse to spell if one of its components does not know how."""
        for component in self.components:
            component.refuse_spelling()

    def ids(self, words: Words) -> list[int]:
        """Give the ids of the first run."""
        return self._first.ids(words)

    def is_known(self, word: str) -> bool:
        """Whether every component knows a word: of one that does not, the mixture has its `<unk>`."""
        return all(component.is_known(word) for component in self.components)

    def ngram_length(self, state: State, history: Words, word: str) -> int:
        """Give that of the component that sees the most."""
        pairs = zip(self.components, state, strict=True)
        return max(component.ngram_length(own, history, word) for component, own in pairs)

    def log10_frequency(self, word: str) -> float | None:
        """Give that of the first run."""
        return self._first.log10_frequency(word)

    def score_words(
        self,
        sentences: Sequence[Words],
        *,
        normalised: bool = False,
        share_prefixes: bool = False,
        after: Sequence[State] | None = None,
        spell: bool = False,
    ) -> list[WordScores]:
        """Score sentences by all components, each after its own states, and mix what they give."""
        sentences = word_lists(sentences)
        after_K = [None] * len(self.components) if after is None else self._of_each(after)
        return self.combine(
            [
                component.score_words(
                    sentences, normalised=normalised, share_prefixes=share_prefixes, after=own, spell=spell
                )
                for component, own in zip(self.components, after_K, strict=True)
            ]
        )

    def combine(self, scores_K: Sequence[Sequence[WordScores]]) -> list[WordScores]:
        """Mix what every component says of some sentences."""
        return [
            WordScores(
                mix(np.stack([one.log_probs for one in scores]), self.weights_K),
                np.logical_and.reduce([one.oov for one in scores]),
                [max(lengths) for lengths in zip(*(one.ngram_lengths for one in scores), strict=True)],
            )
            for scores in zip(*scores_K, strict=True)
        ]

    def reader(self, *, normalised: bool = False, carry: bool = False, spell: bool = False) -> MixtureReader:
        """Make a reader that scores a text by sentence; with `carry` runs continue, n-gram models start afresh."""
        return MixtureReader(self, normalised, carry, spell)

    def start(self) -> State:
        """Give the states of all components at the start of a text."""
        return tuple(component.start() for component in self.components)

    def is_state(self, state: State) -> bool:
        """Whether something has a state for every component."""
        if not isinstance(state, tuple) or len(state) != len(self.components):
            return False
        return all(component.is_state(own) for component, own in zip(self.components, state, strict=True))

    def read_words(self, states: Sequence[State], sentences: Sequence[Words]) -> list[State]:
        """Let every component read the sentences."""
        pairs = zip(self.components, self._of_each(states), strict=True)
        return list(zip(*(component.read_words(own, sentences) for component, own in pairs), strict=True))

    def advance(self, state: State, word: str) -> State:
        """Let every component go on by a word."""
        return tuple(component.advance(own, word) for component, own in zip(self.components, state, strict=True))

    def next_log_probs(self, state: State, words: Words, *, normalised: bool = False) -> Floats:
        """Mix the probabilities of each of these words."""
        pairs = zip(self.components, state, strict=True)
        log_prob_KN = [component.next_log_probs(own, words, normalised=normalised) for component, own in pairs]
        return mix(np.stack(log_prob_KN), self.weights_K)

    def _of_each(self, states: Sequence[State]) -> list[Sequence[State]]:
        """Give every component its own part of the states."""
        return [[state[place] for state in states] for place in range(len(self.components))]


def shared_normaliser(components: Sequence[Model]) -> Normaliser:
    """Find the one way in which all components read text; n-gram models take words as the runs cut them."""
    found = {component.normaliser: component.name for component in components if component.normaliser != AS_IT_STANDS}
    if len(found) > 1:
        first, second = list(found.values())[:2]
        raise UserError(
            f"'{first}' and '{second}' cut text into words in different ways: mix runs whose corpora were prepared "
            "with the same options."
        )
    return next(iter(found), AS_IT_STANDS)


def mix(log_prob_KN: Floats, weight_K: Floats) -> Floats:
    """Compute ln Σ weight · p without leaving the logarithms."""
    with np.errstate(divide="ignore"):
        weighted_KN = log_prob_KN + np.log(weight_K)[:, None]
    mixed: Floats = np.logaddexp.reduce(weighted_KN, axis=0)
    return mixed
