"""A trained run, ready for use: text in, probabilities and text out, as `text_model` says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import UNK, Vocabulary
from bnce.language_model import LanguageModel
from bnce.machine.devices import choose_device
from bnce.runs.directory import RunDirectory
from bnce.runs.unknown_words import UnknownWords
from bnce.scoring.component import WordScores, scored_sentence, sentence_blocks
from bnce.scoring.generate import Sampling, generate
from bnce.scoring.prefixes import score_prefixes
from bnce.scoring.scored import ScoredSentence
from bnce.scoring.scorer import Scorer, State, gather, refuse_unnormalised
from bnce.scoring.sentences import SentenceScorer
from bnce.scoring.text_model import NextWord, TextModel, check_num_next, refuse_one_string
from bnce.scoring.top_words import top_words
from bnce.text.normalise import UNKNOWN_WORD, Normaliser


class Model(TextModel):
    """A network with its words, and where there is one the list of those that share `<unk>`: a run directory's."""

    def __init__(
        self,
        network: LanguageModel,
        vocabulary: Vocabulary,
        normaliser: Normaliser,
        unknown_words: UnknownWords | None = None,
    ) -> None:
        self.network, self.normaliser = network.eval(), normaliser
        self.unknown_words = unknown_words
        self._vocabulary = vocabulary

    @property
    def vocabulary(self) -> Vocabulary:
        """The words, each with its id."""
        return self._vocabulary

    @property
    def log_z(self) -> float | None:
        """The constant ln Z of unnormalised probabilities; None for a model that was trained with the softmax."""
        return float(self.network.output.log_z) if self.network.output.normalises else None

    @property
    def device(self) -> str:
        """Where the network is."""
        return str(self.network.embedding.device)

    def refuse_unnormalised(self) -> None:
        """Refuse to go without the softmax where a model was not trained to be normalised without it."""
        refuse_unnormalised(self.network)

    def scorer(self) -> Scorer:
        """Make what a beam search calls: `start`, `advance` and `score`, over ids and in natural logarithms."""
        return Scorer(self.network)

    def score(self, sentences: Iterable[str], *, normalised: bool = False, carry: bool = False) -> list[ScoredSentence]:
        """Score sentences: log10 probabilities of every word and of `</s>`, in the order of the sentences.

        Each starts from a fresh state, or with `carry` from where the one before ended.
        """
        refuse_one_string(sentences)
        scorer = SentenceScorer(self.network, "normalised" if normalised else "unnormalised", carry=carry)
        return list(self.score_words(scorer, map(self.words, sentences)))

    def score_words(self, scorer: SentenceScorer, sentences: Iterable[list[str]]) -> Iterator[ScoredSentence]:
        """Score sentences that are cut into words, a block of them at a time, so that memory stays bounded."""
        for block in sentence_blocks(sentences):
            ids = [self.encode(words) for words in block]
            for words, numbers, log_probs in zip(block, ids, scorer.score(ids), strict=True):
                yield self.scored(words, numbers, log_probs)

    def scored(self, words: Sequence[str], ids: NDArray[np.int64], log_probs: NDArray[np.float64]) -> ScoredSentence:
        """Put together words, their ids with `</s>`, and natural log-probabilities."""
        return scored_sentence(words, self.word_scores(words, ids, log_probs), ids.tolist())

    def word_scores(self, words: Sequence[str], ids: NDArray[np.int64], log_probs: NDArray[np.float64]) -> WordScores:
        """Give unknown words their shares of `<unk>`; those without one stay OOV, with the probability of `<unk>`."""
        oov = ids == UNK
        if self.unknown_words is not None and oov.any():
            log_probs = log_probs.copy()
            for place in np.flatnonzero(oov).tolist():
                log_share = self.unknown_words.log_share(words[place])
                # <unk> in a text stands for any unknown word: it has the whole, and is none that is known.
                if log_share is not None and words[place] != UNKNOWN_WORD:
                    log_probs[place] += log_share
                    oov[place] = False
        order = self.network.num_context + 2 if self.network.num_context else len(ids) + 1
        return WordScores(log_probs, oov, [min(place + 2, order) for place in range(len(ids))])

    def start(self) -> State:
        """Give the state at the start of a text, with nothing before it."""
        return self.scorer().start()

    def read_words(self, states: Sequence[State], sentences: Sequence[Sequence[str]]) -> list[State]:
        """Move each of several states on by a sentence of its own, which is cut into words, and by its `</s>`."""
        return self.scorer().read(states, [self.encode(words).tolist() for words in sentences])

    def score_apart(self, sentences: Sequence[Sequence[str]], *, normalised: bool = False) -> list[WordScores]:
        """Score sentences that are cut into words, side by side, each from a fresh state."""
        scorer = SentenceScorer(self.network, "normalised" if normalised else "unnormalised")
        ids = [self.encode(words) for words in sentences]
        found = zip(sentences, ids, scorer.score(ids), strict=True)
        return [self.word_scores(words, numbers, log_probs) for words, numbers, log_probs in found]

    def score_lists(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        normalised: bool = False,
        after: Sequence[State] | None = None,
    ) -> list[WordScores]:
        """Score sentences that begin alike, neighbours most of all: every distinct prefix is computed once.

        Each starts afresh, or `after` a state of its own.
        """
        ids = [self.encode(words) for words in sentences]
        found = zip(sentences, ids, score_prefixes(self.scorer(), ids, normalised, after), strict=True)
        return [self.word_scores(words, numbers, log_probs) for words, numbers, log_probs in found]

    def next_words_after(
        self, prompts: Sequence[Sequence[str]], k: int = 10, *, normalised: bool = True
    ) -> list[list[NextWord]]:
        """Find the k likeliest words after each of several prompts, which are cut into words, in one pass for all."""
        check_num_next(k)
        if not normalised:
            refuse_unnormalised(self.network)
        if not prompts:
            return []
        scorer = self.scorer()
        ids = [self.vocabulary.encode(prompt).tolist() for prompt in prompts]
        states = scorer.read([scorer.start()] * len(ids), ids)
        score_BK, word_BK, log_normaliser_B = top_words(self.network.output, gather(states).hidden_BD, k)
        constants = log_normaliser_B.tolist() if normalised else [float(self.network.output.log_z)] * len(ids)
        return [
            [
                NextWord(word, math.exp(score - constant), (score - constant) / math.log(10))
                for word, score in zip(self.vocabulary.decode(words), scores, strict=True)
            ]
            for words, scores, constant in zip(word_BK.tolist(), score_BK.tolist(), constants, strict=True)
        ]

    def continue_words(
        self, words: Sequence[str], num_texts: int, max_words: int, sampling: Sampling, seed: int
    ) -> list[list[int]]:
        """Continue words in several ways, each up to `</s>` or `max_words` words; gives the ids of what is new."""
        ids = self.vocabulary.encode(words).tolist()
        return generate(self.network, ids, num_texts, max_words, sampling, seed)


def load(run: str | Path, device: str = "cpu") -> Model:
    """Load the best model of a run directory; the device is auto, cpu, cuda or cuda:N."""
    opened = RunDirectory.open(Path(run))
    network = opened.load_model(str(choose_device(device)))
    return Model(network, opened.vocabulary, opened.normaliser, UnknownWords.of_run(opened.path))
