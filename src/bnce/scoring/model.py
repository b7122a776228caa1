"""A language model of any kind: text in, probabilities and text out. `bnce.load` gives one.

A run, an n-gram model and a mixture of them have the same methods and the same conventions: text is cut into
words as the training text was; every sentence starts afresh unless it is scored after others; `</s>` is scored at its
end; a word that a model does not know gets the probability of its `<unk>`. Probabilities use the constant Z of training
unless `normalised` is true, which uses the softmax. A self-normalised model needs no pass over its vocabulary.

Methods that score text give log10 probabilities, as SRILM and KenLM do; all others give natural logarithms.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import END, SPECIALS, Vocabulary
from bnce.errors import UserError, argument
from bnce.scoring import word_by_word
from bnce.scoring.batches import Check
from bnce.scoring.sampling import Sampling
from bnce.scoring.scored import Floats, NextWord, RescoredHypothesis, ScoredSentence, WordScores
from bnce.scoring.weights import Weights, count_words
from bnce.text.normalise import END_WORD, Normaliser

# Sentences in memory at a time, fewer where they are long: enough that neighbours in length are alike.
BLOCK_SENTENCES = 2**14
BLOCK_WORDS = 2**18

Words = Sequence[str]
# What a model needs to go on from some words: its own affair, and never changed.
State = Any


class Reader:
    """Scores the sentences of a text in their order. With a model without memory, each sentence starts afresh."""

    def __init__(self, model: Model, normalised: bool, spell: bool = False) -> None:
        self.model, self.normalised, self.spell = model, normalised, spell

    def score(self, sentences: Sequence[Words]) -> list[WordScores]:
        """Score the next sentences."""
        return self.model.score_words(sentences, normalised=self.normalised, spell=self.spell)

    def begin_document(self) -> None:
        """Start afresh: forget the earlier sentences."""
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
    step = "word"  # what goes through the model one after the other

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
        """Whether probabilities with the softmax and with the constant Z differ; those of n-gram models do not."""
        return False

    @property
    def self_normalised(self) -> bool:
        """Whether the model gives unnormalised probabilities."""
        return True

    @property
    def log_z(self) -> float | None:
        """The constant ln Z of unnormalised probabilities; None if there is none or more than one."""
        return None

    @property
    def max_context(self) -> int | None:
        """The largest number of earlier words that a word is predicted from; None if there is no such limit."""
        return None

    @property
    def device(self) -> str:
        """Where the networks are."""
        return "cpu"

    def refuse_unnormalised(self) -> None:
        """Refuse unnormalised probabilities if the model was trained with the softmax."""
        return

    def refuse_spelling(self) -> None:
        """Refuse to spell unknown words if the model does not know how."""
        raise UserError(
            f"'{self.name}' is not a run, and only runs have a spelling model: leave out {argument('spell')}, or use "
            "runs alone."
        )

    @abstractmethod
    def score_words(
        self,
        sentences: Sequence[Words],
        *,
        normalised: bool = False,
        share_prefixes: bool = False,
        after: Sequence[State] | None = None,
        spell: bool = False,
    ) -> list[WordScores]:
        """Score sentences that are already cut into words, each afresh, or each `after` its own state.

        With `share_prefixes`, a prefix that neighbours share, as hypotheses of one utterance do, is computed only
        once. With `after` this is always so. A model without memory between sentences starts each one afresh. With
        `spell` the probability of an unknown word is p(<unk>) · p(its spelling), and no word is OOV.
        """

    def reader(self, *, normalised: bool = False, carry: bool = False, spell: bool = False) -> Reader:
        """Make a reader that scores a text by sentence; with `carry` runs continue from the sentence before."""
        if spell:
            self.refuse_spelling()
        return Reader(self, normalised, spell)

    @abstractmethod
    def start(self) -> State:
        """Give the state at the start of a text, with nothing before it."""

    def read_words(self, states: Sequence[State], sentences: Sequence[Words]) -> list[State]:
        """Advance each state by its own sentence, which is already cut into words, and by `</s>`."""
        return list(states)

    @abstractmethod
    def advance(self, state: State, word: str) -> State:
        """Give the state after one more word."""

    @abstractmethod
    def next_log_probs(self, state: State, words: Words, *, normalised: bool = False) -> Floats:
        """Compute ln p of each of these words as the next word."""

    def scorer(self) -> Any:
        """Make a scorer for beam searches: `start`, `advance` and `score`, with word ids and natural logarithms."""
        return word_by_word.WordScorer(self)

    def next_words_after(
        self, prompts: Sequence[Words], k: int = 10, *, normalised: bool = True
    ) -> list[list[NextWord]]:
        """Find the k most likely words after each prompt; prompts are lists of words."""
        check_num_next(k)
        if not normalised:
            self.refuse_unnormalised()
        return [word_by_word.likeliest(self, prompt, k, normalised) for prompt in prompts]

    def continue_words(
        self, words: Words, num_texts: int, max_words: int, sampling: Sampling, seed: int
    ) -> list[list[int]]:
        """Continue words in several ways, each up to `</s>` or `max_words` words; returns the ids of the new words."""
        return word_by_word.continue_words(self, words, num_texts, max_words, sampling, seed)

    def words(self, text: str) -> list[str]:
        """Cut a text into the words of one sentence, even if it has sentence marks: a hypothesis must stay whole."""
        if not isinstance(text, str):
            raise UserError(f"A text is {text!r:.60}: give a string.")
        sentences = _by_lines(self.normaliser)(text.replace("\n", " "))
        return sentences[0] if sentences else []

    def encode(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Give the ids of a sentence's words, with `</s>` at the end."""
        return np.append(self.vocabulary.encode(words), END)

    def encode_each(self, sentences: Sequence[Words]) -> list[NDArray[np.int64]]:
        """Give the ids of the words of many sentences, with `</s>` at the end of each."""
        if self.vocabulary.unit != "word":
            return [self.encode(words) for words in sentences]
        # All at once, which takes a third of the time.
        ends = np.cumsum(np.array([len(words) + 1 for words in sentences], dtype=np.int64))
        every = itertools.chain.from_iterable((*words, END_WORD) for words in sentences)
        ids = self.vocabulary.encode(every)
        ids[ends - 1] = END
        return np.split(ids, ends[:-1]) if len(ends) else []

    def count_steps(self, words: Words, most: int) -> int:
        """Count the steps that words take, without `</s>`; above `most` the number may be too low, but is above it."""
        return len(words)

    def ids(self, words: Words) -> list[int]:
        """Give the ids that a scored sentence shows: those of `encode`, or zeros where there are none."""
        numbers: list[int] = self.encode(words).tolist()
        return numbers

    def is_known(self, word: str) -> bool:
        """Whether a word has a probability of its own, not only as a `<unk>`; in a mixture, one of every component."""
        return word in self.vocabulary and word not in SPECIALS

    def log10_frequency(self, word: str) -> float | None:
        """Give log10 of a word's share of the training text; None if the model does not tell or never saw it."""
        return None

    def score(
        self, sentences: Iterable[str], *, normalised: bool = False, carry: bool = False, spell: bool = False
    ) -> list[ScoredSentence]:
        """Score sentences: log10 probabilities of every word and of `</s>`, in the order of the sentences.

        Each sentence starts from a fresh state; with `carry`, runs continue from where the previous sentence ended.
        With `spell` an unknown word has a probability of its own: p(<unk>) · p(its spelling).
        """
        if isinstance(sentences, str):
            raise UserError("The sentences to score are one string: give a list of them, such as ['a sentence'].")
        return list(self.reader(normalised=normalised, carry=carry, spell=spell).read(map(self.words, sentences)))

    def read(self, state: State, text: str) -> State:
        """Give the state after one more sentence and its `</s>`, for the next sentence of the same text."""
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
        a state from `start` or `read`, the earlier utterances are the context of ln p.
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
        """Find the k most likely words after a text, the most likely first, including `</s>`.

        The order is exact; the probabilities are those of the softmax, or with the constant Z. `<unk>` is listed by
        models of words, and not by runs over pieces.
        """
        return self.next_words_after([self.words(text)], k, normalised=normalised)[0]

    def generate(
        self, prompt: str = "", num_texts: int = 1, max_words: int = 40, sampling: Sampling | None = None, seed: int = 1
    ) -> list[str]:
        """Continue a prompt in several ways; a text that was cut off at `max_words` ends in `…`."""
        words = self.words(prompt)
        texts = []
        for made in self.continue_words(words, num_texts, max_words, sampling or Sampling(), seed):
            ended = bool(made) and made[-1] == END
            texts.append(self.join(words, made[:-1] if ended else made) + ("" if ended else " …"))
        return texts

    def join(self, words: Words, made: Sequence[int]) -> str:
        """Write the words of new ids behind those of a prompt."""
        return " ".join([*words, *self.vocabulary.spell(made)])


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
