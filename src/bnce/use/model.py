"""A trained run, ready for use: `bnce.load(RUN)` gives text in, probabilities and text out.

Text is cut into words as the training text was. Probabilities of words are log10, as SRILM and KenLM give them, and
unnormalised unless said otherwise: a self-normalised model needs no pass over its vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.normalise import END_WORD, UNKNOWN_WORD, Normaliser
from bnce.corpus.vocabulary import END, UNK, Vocabulary
from bnce.errors import UserError
from bnce.language_model import LanguageModel
from bnce.run_directory import RunDirectory, choose_device
from bnce.use.component import WordScores, one_sentence, sentence_blocks
from bnce.use.generate import Sampling, generate
from bnce.use.prefixes import score_prefixes
from bnce.use.score import SentenceScorer
from bnce.use.scored import ScoredSentence
from bnce.use.scorer import Scorer, State, gather, refuse_unnormalised
from bnce.use.top_words import top_words
from bnce.use.unknown_words import UnknownWords
from bnce.use.weights import Weights, count_words


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


class Model:
    """A network with its words, and where there is one the list of those that share `<unk>`: a run directory's."""

    def __init__(
        self,
        network: LanguageModel,
        vocabulary: Vocabulary,
        normaliser: Normaliser,
        unknown_words: UnknownWords | None = None,
    ) -> None:
        self.network, self.vocabulary, self.normaliser = network.eval(), vocabulary, normaliser
        self.unknown_words = unknown_words

    def words(self, text: str) -> list[str]:
        """Cut a text into the words of one sentence."""
        if not isinstance(text, str):
            raise UserError(f"A text is {text!r:.60}: give a string.")
        return one_sentence(self.normaliser, text)

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
        for block in sentence_blocks(sentences):
            ids = [self.encode(words) for words in block]
            for words, numbers, log_probs in zip(block, ids, scorer.score(ids), strict=True):
                yield self.scored(words, numbers, log_probs)

    def scored(self, words: Sequence[str], ids: NDArray[np.int64], log_probs: NDArray[np.float64]) -> ScoredSentence:
        """Put together words, their ids with `</s>`, and natural log-probabilities."""
        scores = self.word_scores(words, ids, log_probs)
        return ScoredSentence(
            words=[*words, END_WORD],
            ids=ids.tolist(),
            log10_probs=scores.log_probs / math.log(10),
            oov=scores.oov,
            ngram_lengths=scores.ngram_lengths,
        )

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

    def read(self, state: State, text: str) -> State:
        """Give the state after one more sentence and its `</s>`, for what comes next in the same text."""
        return self.read_words([state], [self.words(text)])[0]

    def read_words(self, states: Sequence[State], sentences: Sequence[Sequence[str]]) -> list[State]:
        """Move each of several states on by a sentence of its own, which is cut into words, and by its `</s>`."""
        return self.scorer().read(states, [self.encode(words).tolist() for words in sentences])

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
    network = opened.load_model(str(choose_device(device)))
    return Model(network, opened.vocabulary, opened.normaliser, UnknownWords.of_run(opened.path))
