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

from bnce.corpus.cutter import Tokens
from bnce.corpus.vocabulary import Vocabulary
from bnce.engine.network import Mode
from bnce.errors import UserError
from bnce.ngrams.arpa import AS_IT_STANDS
from bnce.scoring.model import Model, State
from bnce.scoring.results import Floats, WordScores
from bnce.text.normalise import Normaliser


class MixtureModel(Model):
    """Several models as one; a state is that of every component."""

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
        self._first = next((one for one in components if one._has_modes), components[0])
        self._has_modes, self.device = self._first._has_modes, self._first.device
        self.target_counts = self._first.target_counts
        contexts = [one.max_context for one in components if one.max_context is not None]
        self.max_context = max(contexts) if len(contexts) == len(components) else None

    @property
    def vocabulary(self) -> Vocabulary:
        """The words of the first run, or where there is none of the first n-gram model."""
        return self._first.vocabulary

    def _choose_mode(self, mode: Mode | None) -> Mode:
        """Choose the constants where all runs have one."""
        found = {one.choose_mode(mode) for one in self.components if one._has_modes}
        return "unnormalised" if found == {"unnormalised"} else "normalised"

    def refuse_spelling(self) -> None:
        """Refuse to spell if one of its components does not know how."""
        for component in self.components:
            component.refuse_spelling()

    def is_known(self, word: str) -> bool:
        """Whether every component knows a word: of one that does not, the mixture has its `<unk>`."""
        return all(component.is_known(word) for component in self.components)

    def log_probs(
        self,
        text: Tokens,
        *,
        mode: Mode | None = None,
        share: bool = False,
        spell: bool = False,
        after: Sequence[State] | None = None,
        keep_states: bool = False,
    ) -> WordScores:
        """Mix what the components say, each after its own states."""
        if spell:
            self.refuse_spelling()
        mode = self.choose_mode(mode)
        scores_K = [
            component.log_probs(
                text,
                mode=mode,
                share=share,
                spell=spell,
                after=None if after is None else [state[place] for state in after],
                keep_states=keep_states,
            )
            for place, component in enumerate(self.components)
        ]
        states_K = [one.states for one in scores_K if one.states is not None]
        return WordScores(
            scores_K[self.components.index(self._first)].text,  # with the ids of `vocabulary`
            mix(np.stack([one.log_prob_N for one in scores_K]), self.weights_K),
            np.logical_and.reduce([one.oov_N for one in scores_K]),
            np.maximum.reduce([one.ngram_length_N for one in scores_K]),
            mode,
            list(zip(*states_K, strict=True)) if states_K else None,
        )

    def start(self) -> State:
        """Give the states of all components at the start of a text."""
        return tuple(component.start() for component in self.components)

    def _is_state(self, state: State) -> bool:
        if not isinstance(state, tuple) or len(state) != len(self.components):
            return False
        return all(component._is_state(own) for component, own in zip(self.components, state, strict=True))

    def advance_all(self, states: Sequence[State], text: Tokens) -> list[State]:
        """Let every component read the words."""
        after_K = [
            component.advance_all([state[place] for state in states], text)
            for place, component in enumerate(self.components)
        ]
        return list(zip(*after_K, strict=True))

    def distribution(self, state: State, *, mode: Mode | None = None) -> Floats:
        """Mix the probabilities of every word of the vocabulary, which a component may call `<unk>`."""
        mode = self.choose_mode(mode)
        pairs = zip(self.components, state, strict=True)
        log_prob_KV = [one.next_log_probs(own, self.vocabulary.words, mode=mode) for one, own in pairs]
        return mix(np.stack(log_prob_KV), self.weights_K)


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
