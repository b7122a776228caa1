"""A language model, whatever it is: text in, probabilities and text out. `bnce.load` gives one.

A run, an n-gram model and a mixture of such answer the same calls. All keep the same conventions: text is cut into
words as the training text was; every sentence starts afresh unless it is scored after others; `</s>` is scored at its
end; a word that a model does not know gets the probability of its `<unk>`. Probabilities use the constant Z of training
unless `normalised` asks for the softmax: a self-normalised model needs no pass over its vocabulary.

What is scored from text has log10 probabilities, as SRILM and KenLM give them; all else has natural logarithms.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import END, Vocabulary
from bnce.errors import UserError
from bnce.scoring import word_by_word
from bnce.scoring.batches import Check
from bnce.scoring.generate import Sampling
from bnce.scoring.scored import Floats, NextWord, RescoredHypothesis, ScoredSentence, WordScores
from bnce.scoring.weights import Weights, count_words
from bnce.text.normalise import Normaliser

# Sentences in memory at a time, fewer where they are long: enough that neighbours in length are alike.
BLOCK_SENTENCES = 2**12
BLOCK_WORDS = 2**18

Words = Sequence[str]
# What a model needs to go on from some words: its own affair, and never changed.
State = Any


class Reader:
    """Scores the sentences of a text in their order; those of a model that remembers nothing start afresh each."""

    def __init__(self, model: Model, normalised: bool) -> None:
        self.model, self.normalised = model, normalised

    def score(self, sentences: Sequence[Words]) -> list[WordScores]:
        """Score the next sentences."""
        return self.model.score_words(sentences, normalised=self.normalised)

    def begin_document(self) -> None:
        """Forget the sentences before, where they are carried over."""
        return

    def check(self) -> Check | None:
        """Compare the constant with the softmax at the positions that were kept for it, if there are any."""
        return None

    def read(self, sentences: Iterable[list[str]]) -> Iterator[ScoredSentence]:
        """Score the next sentences a block at a time, so that memory stays bounded."""
        for block in sentence_blocks(sentences):
            for words, scores in zip(block, self.score(block), strict=True):
                yield ScoredSentence.of(words, scores, self.model.ids(words))


class Model(ABC):
    """A language model; `kind` is "run", "n-gram" or "mixture", and `normaliser` says how text becomes words."""

    kind: str
    name: str
    normaliser: Normaliser

    @property
    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """The words that may come next, each with its id."""

    @property
    def vocab_size(self) -> int | None:
        """How many words there are; None where a file does not list them."""
        return len(self.vocabulary)

    @property
    def has_constant(self) -> bool:
        """Whether the softmax and the constant Z differ: an n-gram model is always normalised."""
        return False

    @property
    def self_normalised(self) -> bool:
        """Whether unnormalised probabilities can be had."""
        return True

    @property
    def log_z(self) -> float | None:
        """The constant ln Z of unnormalised probabilities; None where there is none, or more than one."""
        return None

    @property
    def max_context(self) -> int | None:
        """How many words before it a network predicts a word from; None where there is no such number."""
        return None

    @property
    def device(self) -> str:
        """Where the networks are."""
        return "cpu"

    def refuse_unnormalised(self) -> None:
        """Refuse to go without the softmax where a model was not trained to be normalised without it."""
        return

    @abstractmethod
    def score_words(
        self,
        sentences: Sequence[Words],
        *,
        normalised: bool = False,
        share_prefixes: bool = False,
        after: Sequence[State] | None = None,
    ) -> list[WordScores]:
        """Score sentences that are cut into words, each afresh, or `after` a state of its own.

        `share_prefixes` says that neighbours begin alike, as hypotheses of one utterance do: each prefix is computed
        once. With `after` it is always so. A model that remembers nothing between sentences starts each afresh.
        """

    def reader(self, *, normalised: bool = False, carry: bool = False) -> Reader:
        """Make what scores a text sentence by sentence; with `carry` runs go on from the sentence before."""
        return Reader(self, normalised)

    @abstractmethod
    def start(self) -> State:
        """Give the state at the start of a text, with nothing before it."""

    def read_words(self, states: Sequence[State], sentences: Sequence[Words]) -> list[State]:
        """Move each of several states on by a sentence of its own, which is cut into words, and by its `</s>`."""
        return list(states)

    @abstractmethod
    def advance(self, state: State, word: str) -> State:
        """Give the state after one more word."""

    @abstractmethod
    def next_log_probs(self, state: State, words: Words, *, normalised: bool = False) -> Floats:
        """Compute ln p of each of these words, were it the next one."""

    def scorer(self) -> Any:
        """Make what a beam search calls: `start`, `advance` and `score`, over ids and in natural logarithms."""
        return word_by_word.WordScorer(self)

    def next_words_after(
        self, prompts: Sequence[Words], k: int = 10, *, normalised: bool = True
    ) -> list[list[NextWord]]:
        """Find the k likeliest words after each of several prompts, which are cut into words."""
        check_num_next(k)
        if not normalised:
            self.refuse_unnormalised()
        return [word_by_word.likeliest(self, prompt, k, normalised) for prompt in prompts]

    def continue_words(
        self, words: Words, num_texts: int, max_words: int, sampling: Sampling, seed: int
    ) -> list[list[int]]:
        """Continue words in several ways, each up to `</s>` or `max_words` words; gives the ids of what is new."""
        return word_by_word.continue_words(self, words, num_texts, max_words, sampling, seed)

    def words(self, text: str) -> list[str]:
        """Cut a text into the words of one sentence, whatever marks are in it: a hypothesis must not fall apart."""
        if not isinstance(text, str):
            raise UserError(f"A text is {text!r:.60}: give a string.")
        sentences = _by_lines(self.normaliser)(text.replace("\n", " "))
        return sentences[0] if sentences else []

    def encode(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Give the ids of a sentence's words and of the `</s>` after them."""
        return np.append(self.vocabulary.encode(words), END)

    def ids(self, words: Words) -> list[int]:
        """Give the ids that a scored sentence shows: those of `encode`, or zeros where there are none."""
        numbers: list[int] = self.encode(words).tolist()
        return numbers

    def score(self, sentences: Iterable[str], *, normalised: bool = False, carry: bool = False) -> list[ScoredSentence]:
        """Score sentences: log10 probabilities of every word and of `</s>`, in the order of the sentences.

        Each starts from a fresh state; with `carry` runs go on from where the one before ended.
        """
        if isinstance(sentences, str):
            raise UserError("The sentences to score are one string: give a list of them, such as ['a sentence'].")
        return list(self.reader(normalised=normalised, carry=carry).read(map(self.words, sentences)))

    def read(self, state: State, text: str) -> State:
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
        after: State | None = None,
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
        words = [self.words(text) for text, _ in pairs]
        scores = self.score_words(words, normalised=normalised, share_prefixes=True, after=states)
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


def sentence_blocks(sentences: Iterable[list[str]]) -> Iterator[list[list[str]]]:
    """Cut a stream of sentences into blocks that fit into memory."""
    block: list[list[str]] = []
    num_words = 0
    for sentence in sentences:
        block.append(sentence)
        num_words += len(sentence)
        if len(block) >= BLOCK_SENTENCES or num_words >= BLOCK_WORDS:
            yield block
            block, num_words = [], 0
    if block:
        yield block


@functools.cache
def _by_lines(normaliser: Normaliser) -> Normaliser:
    return replace(normaliser, sentences="lines")
