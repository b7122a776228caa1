"""What scores words, whatever it is: a run, an n-gram model, or a mixture of such. Logarithms are natural.

All keep the same conventions: every sentence starts afresh unless it is scored after others, `</s>` is scored at its
end, and a word that a component does not know gets the probability of its `<unk>`.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import Vocabulary
from bnce.scoring.scored import ScoredSentence
from bnce.text.normalise import END_WORD, Normaliser

# Sentences in memory at a time, fewer where they are long: enough that neighbours in length are alike.
BLOCK_SENTENCES = 2**12
BLOCK_WORDS = 2**18

Floats = NDArray[np.float64]
Words = Sequence[str]
# What a component needs to go on from the end of a sentence: its own affair, and never changed.
Context = Any


class WordScores(NamedTuple):
    """A sentence's words and its `</s>`: ln p, which of them are unknown, and how many words each ln p is about."""

    log_probs: Floats
    oov: NDArray[np.bool_]
    ngram_lengths: list[int]


class Component(ABC):
    """Probabilities of words; `normaliser` says how text becomes them."""

    name: str
    normaliser: Normaliser

    def words(self, text: str) -> list[str]:
        """Cut a text into the words of one sentence."""
        return one_sentence(self.normaliser, text)

    @abstractmethod
    def score(self, sentences: Sequence[Words], share_prefixes: bool = False) -> list[WordScores]:
        """Score sentences; `share_prefixes` says that neighbours begin alike, as hypotheses of one utterance do."""

    def start(self) -> Context:
        """Give what a component remembers at the start of a document."""
        return None

    def score_after(self, contexts: Sequence[Context], sentences: Sequence[Words]) -> list[WordScores]:
        """Score sentences that begin alike, each after its context; what remembers nothing starts each afresh."""
        return self.score(sentences, share_prefixes=True)

    def read(self, contexts: Sequence[Context], sentences: Sequence[Words]) -> list[Context]:
        """Give what is remembered after one more sentence each, and its `</s>`."""
        return list(contexts)

    def begin_document(self) -> None:
        """Forget the sentences before, where `score` goes on from them."""
        return

    @property
    def vocabulary(self) -> Vocabulary:
        """The words that may come next; refused where a model does not list its words."""
        raise NotImplementedError

    @property
    def self_normalised(self) -> bool:
        """Whether it does without the softmax: `in_mode(normalised=False)` is refused where it does not."""
        return True

    @property
    def has_constant(self) -> bool:
        """Whether the two modes differ: an n-gram model is always normalised."""
        return False

    def in_mode(self, normalised: bool, carry: bool = False) -> Component:
        """Give the same component with the softmax (`normalised`) or with the constant Z, and with `carry` or not."""
        return self

    def advance(self, context: Context, word: str) -> Context:
        """Give what is remembered after one more word."""
        raise NotImplementedError

    def next_log_probs(self, context: Context, words: Words) -> Floats:
        """Compute ln p of each of these words, were it the next one."""
        raise NotImplementedError

    def ids(self, words: Words) -> list[int]:
        """Give the numbers of words and of `</s>` where they have some, else zeros."""
        return [0] * (len(words) + 1)

    def score_sentences(self, sentences: Iterable[list[str]]) -> Iterator[ScoredSentence]:
        """Score sentences a block at a time, so that memory stays bounded."""
        for block in sentence_blocks(sentences):
            for words, scores in zip(block, self.score(block), strict=True):
                yield scored_sentence(words, scores, self.ids(words))


def scored_sentence(words: Words, scores: WordScores, ids: Sequence[int] = ()) -> ScoredSentence:
    """Write up a sentence: `</s>` after its words, and logarithms to the base 10."""
    return ScoredSentence(
        words=[*words, END_WORD],
        ids=list(ids),
        log10_probs=scores.log_probs / math.log(10),
        oov=scores.oov,
        ngram_lengths=scores.ngram_lengths,
    )


def one_sentence(normaliser: Normaliser, text: str) -> list[str]:
    """Cut a text into words and never into sentences, whatever marks are in it: a hypothesis must not fall apart."""
    sentences = _by_lines(normaliser)(text.replace("\n", " "))
    return sentences[0] if sentences else []


@functools.cache
def _by_lines(normaliser: Normaliser) -> Normaliser:
    return replace(normaliser, sentences="lines")


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
