"""Text in, probabilities and text out, whatever the model is: what `bnce.load` gives of a run, a mixture or an n-gram.

Text is cut into words as the training text was. Probabilities of words are log10, as SRILM and KenLM give them, and
unnormalised unless said otherwise: a self-normalised model needs no pass over its vocabulary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import END, Vocabulary
from bnce.errors import UserError
from bnce.scoring.component import Context, WordScores, one_sentence
from bnce.scoring.generate import Sampling
from bnce.scoring.scored import ScoredSentence
from bnce.scoring.weights import Weights, count_words
from bnce.text.normalise import Normaliser


@dataclass(frozen=True)
class NextWord:
    """A word that may come next; probabilities sum to one over the vocabulary when they are normalised."""

    word: str
    prob: float
    log10_prob: float


@dataclass(frozen=True)
class RescoredHypothesis:
    """A hypothesis with what decides over it; `place` is where it stood in the list that was given."""

    text: str
    total: float
    score: float  # the one it came with
    log_prob: float  # natural logarithm, of all its words and </s>
    place: int


class TextModel(ABC):
    """A language model that takes text."""

    kind = "run"
    normaliser: Normaliser

    @property
    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """The words, each with its id."""

    @property
    def vocab_size(self) -> int | None:
        """How many words there are; None where a file does not list them."""
        return len(self.vocabulary)

    @property
    def self_normalised(self) -> bool:
        """Whether unnormalised probabilities can be had."""
        return self.log_z is not None

    @property
    @abstractmethod
    def log_z(self) -> float | None:
        """The constant ln Z of unnormalised probabilities; None where there is none, or more than one."""

    @property
    @abstractmethod
    def device(self) -> str:
        """Where the network is."""

    @abstractmethod
    def refuse_unnormalised(self) -> None:
        """Refuse to go without the softmax where a model was not trained to be normalised without it."""

    @abstractmethod
    def scorer(self) -> Any:
        """Make what a beam search calls: `start`, `advance` and `score`, over ids and in natural logarithms."""

    @abstractmethod
    def score(self, sentences: Iterable[str], *, normalised: bool = False, carry: bool = False) -> list[ScoredSentence]:
        """Score sentences: log10 probabilities of every word and of `</s>`, in the order of the sentences."""

    @abstractmethod
    def score_apart(self, sentences: Sequence[Sequence[str]], *, normalised: bool = False) -> list[WordScores]:
        """Score sentences that are cut into words, side by side, each from a fresh state."""

    @abstractmethod
    def start(self) -> Context:
        """Give the state at the start of a text, with nothing before it."""

    @abstractmethod
    def read_words(self, states: Sequence[Context], sentences: Sequence[Sequence[str]]) -> list[Context]:
        """Move each of several states on by a sentence of its own, which is cut into words, and by its `</s>`."""

    @abstractmethod
    def score_lists(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        normalised: bool = False,
        after: Sequence[Context] | None = None,
    ) -> list[WordScores]:
        """Score sentences that begin alike, neighbours most of all: every distinct prefix is computed once.

        Each starts afresh, or `after` a state of its own.
        """

    @abstractmethod
    def next_words_after(
        self, prompts: Sequence[Sequence[str]], k: int = 10, *, normalised: bool = True
    ) -> list[list[NextWord]]:
        """Find the k likeliest words after each of several prompts, which are cut into words."""

    @abstractmethod
    def continue_words(
        self, words: Sequence[str], num_texts: int, max_words: int, sampling: Sampling, seed: int
    ) -> list[list[int]]:
        """Continue words in several ways, each up to `</s>` or `max_words` words; gives the ids of what is new."""

    def words(self, text: str) -> list[str]:
        """Cut a text into the words of one sentence."""
        if not isinstance(text, str):
            raise UserError(f"A text is {text!r:.60}: give a string.")
        return one_sentence(self.normaliser, text)

    def encode(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Give the ids of a sentence's words and of the `</s>` after them."""
        return np.append(self.vocabulary.encode(words), END)

    def read(self, state: Context, text: str) -> Context:
        """Give the state after one more sentence and its `</s>`, for what comes next in the same text."""
        return self.read_words([state], [self.words(text)])[0]

    def rescore(
        self,
        hypotheses: Sequence[str | tuple[str, float]],
        *,
        score_weight: float = 1.0,
        lm_weight: float = 1.0,
        word_penalty: float = 0.0,
        normalised: bool = False,
        after: Context | None = None,
    ) -> list[RescoredHypothesis]:
        """Sort the hypotheses of one utterance, texts or (text, score) pairs, the best first; equals keep their order.

        total = score_weight · score + lm_weight · ln p − word_penalty · words; a higher score is better. With `after`,
        a state that `start` and `read` give, ln p is that after the utterances before.
        """
        if isinstance(hypotheses, str):
            raise UserError("The hypotheses are one string: give a list of them, such as ['one', ('another', -3.5)].")
        pairs = [(one, 0.0) if isinstance(one, str) else (str(one[0]), float(one[1])) for one in hypotheses]
        for text, score in pairs:
            if not math.isfinite(score):
                raise UserError(f"The score of the hypothesis '{text}' is {score}: it must be a finite number.")
        weights = Weights(am_weight=score_weight, lm_weight=lm_weight, word_penalty=word_penalty)
        states = None if after is None else [after] * len(pairs)
        scores = self.score_lists([self.words(text) for text, _ in pairs], normalised=normalised, after=states)
        found = []
        for place, ((text, score), word_scores) in enumerate(zip(pairs, scores, strict=True)):
            log_prob = float(word_scores.log_probs.sum())
            total = weights.total(am=score, lm=log_prob, num_words=count_words(text))
            found.append(RescoredHypothesis(text, float(total), score, log_prob, place))
        return sorted(found, key=lambda one: -one.total)

    def next_words(self, text: str = "", k: int = 10, *, normalised: bool = True) -> list[NextWord]:
        """Find the k likeliest words after a text, the likeliest first, `</s>` and `<unk>` among them.

        The order is exact; the probabilities are those of the softmax, or with the constant Z.
        """
        return self.next_words_after([self.words(text)], k, normalised=normalised)[0]

    def generate(
        self, prompt: str = "", num_texts: int = 1, max_words: int = 40, sampling: Sampling | None = None, seed: int = 1
    ) -> list[str]:
        """Go on from a prompt in several ways; a text that found no end ends in `…`."""
        words = self.words(prompt)
        texts = []
        for made in self.continue_words(words, num_texts, max_words, sampling or Sampling(), seed):
            ended = bool(made) and made[-1] == END
            found = self.vocabulary.decode(made[:-1] if ended else made)
            texts.append(" ".join([*words, *found]) + ("" if ended else " …"))
        return texts


def check_num_next(k: int) -> None:
    """Refuse to look for no word at all."""
    if k < 1:
        raise UserError(f"The number of next words is {k}: it must be 1 or more.")


def refuse_one_string(sentences: Iterable[str]) -> None:
    """Refuse a string where a list of strings is wanted: its letters would be taken for sentences."""
    if isinstance(sentences, str):
        raise UserError("The sentences to score are one string: give a list of them, such as ['a sentence'].")
