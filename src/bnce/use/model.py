"""A trained run, ready for use: `bnce.load(RUN)` gives text in, probabilities and text out.

Text is cut into words as the training text was. Probabilities of words are log10, as SRILM and KenLM give them, and
unnormalised unless said otherwise: a self-normalised model needs no pass over its vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.normalise import END_WORD, Normaliser
from bnce.corpus.vocabulary import END, UNK, Vocabulary
from bnce.errors import UserError
from bnce.language_model import LanguageModel
from bnce.run_directory import RunDirectory, choose_device
from bnce.use.generate import Sampling, generate
from bnce.use.score import SentenceScorer
from bnce.use.scored import ScoredSentence
from bnce.use.scorer import Scorer, gather, refuse_unnormalised
from bnce.use.top_words import top_words

# Sentences in memory at a time, fewer where they are long: enough that neighbours in length are alike.
BLOCK_SENTENCES = 2**12
BLOCK_WORDS = 2**18


@dataclass(frozen=True)
class NextWord:
    """A word that may come next; probabilities sum to one over the vocabulary when they are normalised."""

    word: str
    prob: float
    log10_prob: float


class Model:
    """A network with its words: what a run directory holds."""

    def __init__(self, network: LanguageModel, vocabulary: Vocabulary, normaliser: Normaliser) -> None:
        self.network, self.vocabulary, self.normaliser = network.eval(), vocabulary, normaliser
        # A line is one sentence, whatever marks are in it: a hypothesis must not fall apart.
        self._one_sentence = replace(normaliser, sentences="lines")

    def words(self, text: str) -> list[str]:
        """Cut a text into the words of one sentence."""
        sentences = self._one_sentence(text.replace("\n", " "))
        return sentences[0] if sentences else []

    def encode(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Give the ids of a sentence's words and of the `</s>` after them."""
        return np.append(self.vocabulary.encode(words), END)

    def scorer(self) -> Scorer:
        """Make what a beam search calls: `start`, `advance` and `score`, over ids and in natural logarithms."""
        return Scorer(self.network)

    def score(self, sentences: Iterable[str], *, normalised: bool = False, carry: bool = False) -> list[ScoredSentence]:
        """Score sentences: log10 probabilities of every word and of `</s>`, in the order of the sentences.

        Each starts from a fresh state, or with `carry` from where the one before ended.
        """
        if isinstance(sentences, str):
            raise UserError("The sentences to score are one string: give a list of them, such as ['a sentence'].")
        scorer = SentenceScorer(self.network, "normalised" if normalised else "unnormalised", carry=carry)
        return list(self.score_words(scorer, map(self.words, sentences)))

    def score_words(self, scorer: SentenceScorer, sentences: Iterable[list[str]]) -> Iterator[ScoredSentence]:
        """Score sentences that are cut into words, a block of them at a time, so that memory stays bounded."""
        for block in _blocks(sentences):
            ids = [self.encode(words) for words in block]
            for words, numbers, log_probs in zip(block, ids, scorer.score(ids), strict=True):
                yield self.scored(words, numbers, log_probs)

    def scored(self, words: Sequence[str], ids: NDArray[np.int64], log_probs: NDArray[np.float64]) -> ScoredSentence:
        """Put together words, their ids with `</s>`, and natural log-probabilities."""
        order = self.network.num_context + 2 if self.network.num_context else len(ids) + 1
        return ScoredSentence(
            words=[*words, END_WORD],
            ids=ids.tolist(),
            log10_probs=log_probs / math.log(10),
            oov=ids == UNK,
            ngram_lengths=[min(place + 2, order) for place in range(len(ids))],
        )

    def next_words(self, text: str = "", k: int = 10, *, normalised: bool = True) -> list[NextWord]:
        """Find the k likeliest words after a text, the likeliest first, `</s>` and `<unk>` among them.

        The order is exact; the probabilities are those of the softmax, or with the constant Z.
        """
        return self.next_words_after([self.words(text)], k, normalised=normalised)[0]

    def next_words_after(
        self, prompts: Sequence[Sequence[str]], k: int = 10, *, normalised: bool = True
    ) -> list[list[NextWord]]:
        """Find the k likeliest words after each of several prompts, which are cut into words, in one pass for all."""
        if k < 1:
            raise UserError(f"The number of next words is {k}: it must be 1 or more.")
        if not normalised:
            refuse_unnormalised(self.network)
        if not prompts:
            return []
        scorer = self.scorer()
        ids = [self.vocabulary.encode(prompt).tolist() for prompt in prompts]
        states = [scorer.start()] * len(ids)
        for place in range(max(map(len, ids))):
            going = [number for number, prompt in enumerate(ids) if place < len(prompt)]
            moved = scorer.advance([states[number] for number in going], [ids[number][place] for number in going])
            for number, state in zip(going, moved, strict=True):
                states[number] = state
        score_BK, word_BK, log_normaliser_B = top_words(self.network.output, gather(states).hidden_BD, k)
        constants = log_normaliser_B.tolist() if normalised else [float(self.network.output.log_z)] * len(ids)
        return [
            [
                NextWord(word, math.exp(score - constant), (score - constant) / math.log(10))
                for word, score in zip(self.vocabulary.decode(words), scores, strict=True)
            ]
            for words, scores, constant in zip(word_BK.tolist(), score_BK.tolist(), constants, strict=True)
        ]

    def generate(
        self, prompt: str = "", num_texts: int = 1, max_words: int = 40, sampling: Sampling | None = None, seed: int = 1
    ) -> list[str]:
        """Go on from a prompt in several ways; a text that found no end ends in `…`."""
        words = self.words(prompt)
        ids = self.vocabulary.encode(words).tolist()
        texts = []
        for made in generate(self.network, ids, num_texts, max_words, sampling or Sampling(), seed):
            ended = bool(made) and made[-1] == END
            found = self.vocabulary.decode(made[:-1] if ended else made)
            texts.append(" ".join([*words, *found]) + ("" if ended else " …"))
        return texts


def load(run: str | Path, device: str = "cpu") -> Model:
    """Load the best model of a run directory; the device is auto, cpu, cuda or cuda:N."""
    opened = RunDirectory.open(Path(run))
    return Model(opened.load_model(str(choose_device(device))), opened.vocabulary, opened.normaliser)


def _blocks(sentences: Iterable[list[str]]) -> Iterator[list[list[str]]]:
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
