"""A mixture or an n-gram model with the interface of a run: what `bnce.load("mixture.toml")` gives.

The next word is one of the first run's words (of an n-gram model by itself: those of its ARPA file). A word that a
component does not know has the probability of that component's `<unk>`, as everywhere in mixtures.

Legend: B states, K words a state, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnce.corpus.vocabulary import END, Vocabulary
from bnce.errors import UserError
from bnce.scoring.component import Component, Context, Floats, WordScores
from bnce.scoring.generate import Sampling, check_texts, sample_words
from bnce.scoring.mixture import Mixture
from bnce.scoring.scored import ScoredSentence
from bnce.scoring.text_model import NextWord, TextModel, check_num_next, refuse_one_string


class MixtureModel(TextModel):
    """Several models as one; runs in it are with the softmax (`normalised`) or with the constant Z."""

    def __init__(self, component: Component, device: str = "cpu") -> None:
        self.component, self._device = component, device
        self.normaliser = component.normaliser
        self.kind = "mixture" if isinstance(component, Mixture) else "n-gram"
        self._modes: dict[bool, Component] = {}

    @property
    def vocabulary(self) -> Vocabulary:
        """The words that may come next, each with its id."""
        return self.component.vocabulary

    @property
    def vocab_size(self) -> int | None:
        """How many words there are; None for a KenLM binary by itself, which does not list them."""
        try:
            return len(self.vocabulary)
        except UserError:
            return None

    @property
    def self_normalised(self) -> bool:
        """Whether every run in it was trained to do without the softmax."""
        return self.component.self_normalised

    @property
    def log_z(self) -> None:
        """There is no one constant: every run has its own, and an n-gram model has none."""
        return

    @property
    def device(self) -> str:
        """Where the networks are."""
        return self._device

    def in_mode(self, normalised: bool) -> Component:
        """Give what scores words in that mode."""
        if normalised not in self._modes:
            self._modes[normalised] = self.component.in_mode(normalised)
        return self._modes[normalised]

    def refuse_unnormalised(self) -> None:
        """Refuse to go without the softmax where a run in it was not trained to be normalised without it."""
        self.in_mode(False)

    def scorer(self) -> MixtureScorer:
        """Make what a beam search calls: `start`, `advance` and `score`, over ids and in natural logarithms."""
        return MixtureScorer(self)

    def score(self, sentences: Iterable[str], *, normalised: bool = False, carry: bool = False) -> list[ScoredSentence]:
        """Score sentences: log10 probabilities of every word and of `</s>`, in the order of the sentences.

        Each starts from a fresh state; with `carry` runs go on from where the one before ended.
        """
        refuse_one_string(sentences)
        component = self.component.in_mode(normalised, carry)
        return list(component.score_sentences(map(self.words, sentences)))

    def score_apart(self, sentences: Sequence[Sequence[str]], *, normalised: bool = False) -> list[WordScores]:
        """Score sentences that are cut into words, side by side, each from a fresh state."""
        return self.in_mode(normalised).score(sentences)

    def start(self) -> Context:
        """Give the states at the start of a text, with nothing before it."""
        return self.component.start()

    def read_words(self, states: Sequence[Context], sentences: Sequence[Sequence[str]]) -> list[Context]:
        """Move each of several states on by a sentence of its own, which is cut into words, and by its `</s>`."""
        return self.component.read(states, sentences)

    def score_lists(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        normalised: bool = False,
        after: Sequence[Context] | None = None,
    ) -> list[WordScores]:
        """Score sentences that begin alike, neighbours most of all; each afresh, or `after` a state of its own."""
        component = self.in_mode(normalised)
        if after is None:
            return component.score(sentences, share_prefixes=True)
        return component.score_after(after, sentences)

    def next_words_after(
        self, prompts: Sequence[Sequence[str]], k: int = 10, *, normalised: bool = True
    ) -> list[list[NextWord]]:
        """Find the k likeliest words after each of several prompts, which are cut into words."""
        check_num_next(k)
        component, words = self.in_mode(normalised), self.vocabulary.words
        found = []
        for prompt in prompts:
            log_prob_V = component.next_log_probs(_after(component, prompt), words)
            found.append(
                [
                    NextWord(words[place], math.exp(log_prob_V[place]), float(log_prob_V[place]) / math.log(10))
                    for place in _highest(log_prob_V, k)
                ]
            )
        return found

    def continue_words(
        self, words: Sequence[str], num_texts: int, max_words: int, sampling: Sampling, seed: int
    ) -> list[list[int]]:
        """Continue words in several ways, each up to `</s>` or `max_words` words; gives the ids of what is new."""
        check_texts(num_texts, max_words, seed)
        component, spelt = self.in_mode(True), self.vocabulary.words
        generator = torch.Generator().manual_seed(seed)
        prompt = _after(component, words)
        texts: list[list[int]] = []
        for _ in range(num_texts):
            state = prompt
            made: list[int] = []
            while len(made) < max_words and (not made or made[-1] != END):
                score_BV = torch.from_numpy(component.next_log_probs(state, spelt)).unsqueeze(0)
                made.append(int(sample_words(score_BV, sampling, generator)))
                state = component.advance(state, spelt[made[-1]])
            texts.append(made)
        return texts


class MixtureScorer:
    """Answers a beam search: states that move on by a word, and ln p of words after them; words are ids."""

    def __init__(self, model: MixtureModel) -> None:
        self.model = model

    def start(self) -> Any:
        """Give the state at the start of a sentence."""
        return self.model.component.start()

    def advance(self, states: Sequence[Any], words: Tensor | Sequence[int]) -> list[Any]:
        """Move each state on by one word."""
        spelt = self.model.vocabulary.decode(_numbers(words).tolist())
        component = self.model.component
        return [component.advance(state, word) for state, word in zip(states, spelt, strict=True)]

    def score(
        self, states: Sequence[Any], words: Tensor | Sequence[int] | Sequence[Sequence[int]], normalised: bool = False
    ) -> Tensor:
        """Compute ln p of words after states: one each (B,) or several each (B, K)."""
        numbers = _numbers(words)
        component = self.model.in_mode(normalised)
        spelt = [self.model.vocabulary.decode(row) for row in numbers.reshape(len(states), -1).tolist()]
        found = [component.next_log_probs(state, row) for state, row in zip(states, spelt, strict=True)]
        return torch.from_numpy(np.array(found, dtype=np.float64)).reshape(numbers.shape)


def _after(component: Component, words: Sequence[str]) -> Any:
    return functools.reduce(component.advance, words, component.start())


def _highest(log_prob_V: Floats, k: int) -> list[int]:
    k = min(k, len(log_prob_V))
    place_K = np.argpartition(-log_prob_V, k - 1)[:k]
    places: list[int] = place_K[np.argsort(-log_prob_V[place_K], kind="stable")].tolist()
    return places


def _numbers(words: Tensor | Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    return torch.as_tensor(words).long()
