"""A language model of any kind: text in, probabilities and text out. `bnce.load` gives one.

A run, an n-gram model and a mixture of them have the same methods and the same conventions: text is cut into
words as the training text was; every sentence starts afresh unless it is scored after others; `</s>` is scored at its
end; a word that a model does not know gets the probability of its `<unk>`. Probabilities use the constant Z of training
unless `normalised` is true, which uses the softmax. A self-normalised model needs no pass over its vocabulary.

Methods that score text give log10 probabilities, as SRILM and KenLM do; all others give natural logarithms.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.vocabulary import END, SPECIALS, Vocabulary
from bnce.errors import UserError, argument, shown, whole_number
from bnce.scoring.batches import Check
from bnce.scoring.given import one_string, with_score, word_lists
from bnce.scoring.prefixes import split
from bnce.scoring.sampling import Sampling, check_texts, highest, sample_words
from bnce.scoring.scored import Floats, NextWord, RescoredHypothesis, ScoredSentence, WordScores
from bnce.scoring.weights import Weights, count_words
from bnce.text.normalise import END_WORD, Normaliser

# Sentences in memory at a time, fewer where they are long: enough that neighbours in length are alike.
BLOCK_SENTENCES = 2**15
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
            yield from map(ScoredSentence.of, block, *self._score_with_ids(block))

    def _score_with_ids(self, sentences: Sequence[Words]) -> tuple[list[WordScores], Iterable[list[int]]]:
        return self.score(sentences), map(self.model.ids, sentences)


class WordScorer:
    """Answers a beam search word by word: states that move on, and ln p of words after them; words are ids.

    B states have K words each. General, but slow: a run has its own `Scorer`.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    def start(self) -> State:
        """Give the state at the start of a sentence."""
        return self.model.start()

    def advance(self, states: Sequence[State], words: Any) -> list[State]:
        """Move each state on by one word."""
        spelt = self.model.vocabulary.decode(_numbers(words).tolist())
        return [self.model.advance(state, word) for state, word in zip(states, spelt, strict=True)]

    def score(self, states: Sequence[State], words: Any, normalised: bool = False) -> Floats:
        """Compute ln p of words after states: one each (B,) or several each (B, K)."""
        if not normalised:
            self.model.refuse_unnormalised()
        numbers = _numbers(words)
        spelt = [self.model.vocabulary.decode(row) for row in numbers.reshape(len(states), -1).tolist()]
        pairs = zip(states, spelt, strict=True)
        found = [self.model.next_log_probs(state, row, normalised=normalised) for state, row in pairs]
        return np.array(found, dtype=np.float64).reshape(numbers.shape)


def no_spelling(name: str) -> UserError:
    """Say that a model is none that spells words."""
    return UserError(
        f"'{name}' is not a run, and only runs have a spelling model: leave out {argument('spell')}, or use runs alone."
    )


class Model(ABC):
    """A language model; `kind` is "run", "n-gram" or "mixture", and `normaliser` says how text becomes words."""

    kind: str
    name: str
    normaliser: Normaliser
    has_constant = False  # whether probabilities with the softmax and with the constant Z differ
    max_context: int | None = None  # the most earlier words that a word is predicted from; None: there is no limit
    device = "cpu"  # where the networks are

    @property
    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """The words that may come next, each with its id."""

    @property
    def vocab_size(self) -> int | None:
        """How many words there are; None where a file does not list them."""
        return len(self.vocabulary)

    @property
    def self_normalised(self) -> bool:
        """Whether the model gives unnormalised probabilities."""
        return True

    @property
    def log_z(self) -> float | None:
        """The constant ln Z of unnormalised probabilities; None if there is none or more than one."""
        return None

    def __repr__(self) -> str:
        constant = "" if self.log_z is None else f", log_z={self.log_z:.4g}"
        told = f"{self.kind} {self.name!r}, vocab_size={self.vocab_size}{constant}, device={str(self.device)!r}"
        return f"<bnce.Model: {told}>"

    def refuse_unnormalised(self) -> None:
        """Refuse unnormalised probabilities if the model was trained with the softmax."""
        return

    def refuse_spelling(self) -> None:
        """Raise an error if the model has no spelling model."""
        raise no_spelling(self.name)

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
        """Score sentences that are already cut into words, without context or `after` a state each.

        With `share_prefixes`, a prefix that neighbours share, as hypotheses of one utterance do, is computed only
        once, except by a Transformer. With `after` this is always so. An n-gram model starts each one without context.
        With `spell` the probability of an unknown word is p(<unk>) · p(its spelling), and no word is OOV.
        """

    def reader(self, *, normalised: bool = False, carry: bool = False, spell: bool = False) -> Reader:
        """Make a reader that scores a text by sentence; with `carry` runs continue from the sentence before."""
        if spell:
            self.refuse_spelling()
        return Reader(self, normalised, spell)

    @abstractmethod
    def start(self) -> State:
        """Give the state at the start of a text, with nothing before it."""

    def is_state(self, state: State) -> bool:
        """Whether something can be a state of this model."""
        return not isinstance(state, str | bytes | int | float)

    def _check_state(self, state: State) -> None:
        if not self.is_state(state):
            raise UserError(
                f"The state is {shown(state)}: give one that start or read of the same model returned, such as "
                "model.read(model.start(), 'an earlier sentence')."
            )

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
        return WordScorer(self)

    def next_words_after(
        self, prompts: Sequence[Words], k: int = 10, *, normalised: bool = True
    ) -> list[list[NextWord]]:
        """Find the k most likely words after each prompt; prompts are lists of words."""
        if whole_number("The number of next words", k, None) < 1:
            raise UserError(f"The number of next words is {k}: it must be 1 or more.")
        prompts = word_lists(prompts)
        if not normalised:
            self.refuse_unnormalised()
        return self._likeliest(prompts, k, normalised) if prompts else []

    def _likeliest(self, prompts: Sequence[Words], k: int, normalised: bool) -> list[list[NextWord]]:
        """Find the most likely words, here prompt by prompt."""
        words, found = self.vocabulary.words, []
        for prompt in prompts:
            log_prob_V = self.next_log_probs(self._after(prompt), words, normalised=normalised)
            found.append(
                [NextWord.of(words[place], float(log_prob_V[place])) for place in highest(log_prob_V[None], k)[0]]
            )
        return found

    def continue_words(
        self, words: Words, num_texts: int, max_words: int, sampling: Sampling, seed: int
    ) -> list[list[int]]:
        """Continue words in several ways, each up to `</s>` or `max_words` words; returns the ids of the new words."""
        check_texts(num_texts, max_words, seed)
        spelt = self.vocabulary.words
        generator = np.random.default_rng(seed)
        prompt = self._after(words)
        texts: list[list[int]] = []
        for _ in range(num_texts):
            state = prompt
            made: list[int] = []
            while len(made) < max_words and (not made or made[-1] != END):
                score_BV = self.next_log_probs(state, spelt, normalised=True)[None]
                made.append(int(sample_words(score_BV, sampling, generator)[0]))
                state = self.advance(state, spelt[made[-1]])
            texts.append(made)
        return texts

    def _after(self, words: Words) -> State:
        return functools.reduce(self.advance, words, self.start())

    def words(self, text: str) -> list[str]:
        """Cut a text into the words of one sentence, even if it has sentence marks: a hypothesis must stay whole."""
        if not isinstance(text, str):
            raise UserError(f"A text is {text!r:.60}: give a string.")
        sentences = _by_lines(self.normaliser)(text.replace("\n", " "))
        return sentences[0] if sentences else []

    def encode(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Give the ids of a sentence's words, with `</s>` at the end."""
        if isinstance(words, str):
            raise one_string(words)
        return np.append(self.vocabulary.encode(words), END)

    def encode_each(self, sentences: Sequence[Words]) -> list[NDArray[np.int64]]:
        """Give the ids of the words of many sentences, with `</s>` at the end of each."""

        # All at once, which takes a third of the time.
        length_S = np.array([len(words) + 1 for words in sentences], dtype=np.int64)
        ids = self.vocabulary.encode(flat_words(sentences))
        ids[np.cumsum(length_S) - 1] = END
        return split(ids, length_S)

    def ids(self, words: Words) -> list[int]:
        """Give the ids that a scored sentence shows: those of `encode`, or zeros where there are none."""
        numbers: list[int] = self.encode(words).tolist()
        return numbers

    def is_known(self, word: str) -> bool:
        """Whether a word has its own probability, not that of `<unk>`; in a mixture, in every component."""
        return word in self.vocabulary and word not in SPECIALS

    def ngram_length(self, state: State, history: Words, word: str) -> int:
        """Count the words that the probability of a word depends on, after this history.

        The word itself counts, and the start of the sentence if the model sees it.
        """
        num_before = len(history) + 1
        return 1 + (num_before if self.max_context is None else min(num_before, self.max_context))

    def log10_frequency(self, word: str) -> float | None:
        """Give log10 of a word's share of the training text; None if the model has no counts or never saw it."""
        return None

    def score(
        self, sentences: Iterable[str], *, normalised: bool = False, carry: bool = False, spell: bool = False
    ) -> list[ScoredSentence]:
        """Score sentences: log10 probabilities of every word and of `</s>`, in the order of the sentences.

        Each sentence starts without context; with `carry`, runs continue from where the previous sentence ended.
        With `spell` an unknown word has a probability of its own: p(<unk>) · p(its spelling).
        """
        if isinstance(sentences, str):
            raise UserError("The sentences to score are one string: give a list of them, such as ['a sentence'].")
        return list(self.reader(normalised=normalised, carry=carry, spell=spell).read(map(self.words, sentences)))

    def read(self, state: State, text: str) -> State:
        """Give the state after one more sentence and its `</s>`, for the next sentence of the same text."""
        self._check_state(state)
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
        """Sort the hypotheses of one utterance, texts or (text, score) pairs, the best first.

        Equal ones keep their order.

        total = score_weight · score + lm_weight · ln p − word_penalty · words; a higher score is better. With `after`,
        a state from `start` or `read`, the earlier utterances are the context of ln p.
        """
        if isinstance(hypotheses, str):
            raise UserError("The hypotheses are one string: give a list of them, such as ['one', ('another', -3.5)].")
        pairs = [with_score(one) for one in hypotheses]
        if after is not None:
            self._check_state(after)
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

        The order is exact; the probabilities are those of the softmax, or with the constant Z. `<unk>` is listed, too.
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
            spelt = self.vocabulary.decode(made[:-1] if ended else made)
            texts.append(" ".join([*words, *spelt]) + ("" if ended else " …"))
        return texts


def flat_words(sentences: Sequence[Words]) -> list[str]:
    """Give the words of all sentences one after the other, with `</s>` at the end of each."""
    return [word for words in sentences for word in (*words, END_WORD)]


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


def _numbers(words: Any) -> NDArray[np.int64]:
    return np.asarray(words.cpu() if hasattr(words, "cpu") else words).astype(np.int64)
