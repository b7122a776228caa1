"""A language model of any kind: text in, probabilities and text out. `bnce.load` gives one.

A run, an n-gram model and a mixture answer three questions, and all else follows from these here: `log_probs` of words
that are given, `advance_all` of states, and the `distribution` of the next word. Text is cut into words as the training
text was; every sentence starts afresh unless it is scored after others; `</s>` is scored at its end; a word that a
model does not know gets the probability of its `<unk>`. Logarithms are natural.

A mode says what probabilities are divided by: the constant Z of training ("unnormalised", no pass over the vocabulary),
or the softmax sum ("normalised"). None is the first where a model has a constant, and else the second.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.cutter import Tokens
from bnce.corpus.vocabulary import END, Vocabulary
from bnce.engine.network import Mode
from bnce.engine.sampling import Sampling, check_texts, highest, sample_words
from bnce.errors import UserError, argument, shown, unknown_name, whole_number
from bnce.scoring.results import Floats, NextWord, RescoredHypothesis, ScoredSentence, Sums, WordScores
from bnce.text.normalise import UNKNOWN_WORD, Normaliser
from bnce.text.sources import batches

# Words in memory at a time, where sentences are given as words; a short sentence counts as so many at least.
BLOCK_WORDS = 2**18
MIN_WORDS = 8

Words = Sequence[str]
# What a model needs to go on from some words: its own affair, and never changed. None is the start of a text.
State = Any


class Model(ABC):
    """A language model; `kind` is "run", "n-gram" or "mixture", and `normaliser` says how text becomes words."""

    kind: str
    name: str
    normaliser: Normaliser
    max_context: int | None = None  # the most earlier words that a word is predicted from; None: there is no limit
    device = "cpu"  # where the networks are
    notice: str | None = None  # what whoever uses the model should know
    target_counts: NDArray[np.int64] | None = None  # how often each word of `vocabulary` is in the training text
    _has_modes = False  # whether probabilities with a constant and with the softmax differ

    @property
    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """The words that may come next, each with its id."""

    @abstractmethod
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
        """Compute ln p of every word, each sequence from the start of a text or `after` a state of its own.

        With `share`, sequences that are neighbours begin alike, as hypotheses of one utterance do. With `spell` the
        probability of an unknown word is p(<unk>) · p(its spelling), and no word is OOV. With `keep_states` the states
        after the sequences are returned, too.
        """

    @abstractmethod
    def advance_all(self, states: Sequence[State], text: Tokens) -> list[State]:
        """Give the states after a sequence of words each."""

    @abstractmethod
    def distribution(self, state: State, *, mode: Mode | None = None) -> Floats:
        """Compute ln p of every word of `vocabulary` as the next word."""

    @property
    def log_z(self) -> float | None:
        """The constant ln Z of unnormalised probabilities; None if there is none or more than one."""
        return None

    @property
    def self_normalised(self) -> bool:
        """Whether the softmax is not needed: there is a constant, or the model is normalised by itself."""
        return not self._has_modes or self.choose_mode(None) == "unnormalised"

    def __repr__(self) -> str:
        constant = "" if self.log_z is None else f", log_z={self.log_z:.4g}"
        about = f"{self.kind} {self.name!r}, vocab_size={self.vocab_size}{constant}, device={str(self.device)!r}"
        return f"<bnce.Model: {about}>"

    @property
    def vocab_size(self) -> int | None:
        """How many words there are; None where a file does not list them."""
        try:
            return len(self.vocabulary)
        except UserError:
            return None

    def is_known(self, word: str) -> bool:
        """Whether a word has its own probability, not that of `<unk>`; in a mixture, in every component."""
        return word in self.vocabulary and word != UNKNOWN_WORD

    def choose_mode(self, mode: str | None) -> Mode:
        """Choose how probabilities are computed, and refuse the constant of a model that has none."""
        if mode is not None and mode not in get_args(Mode):
            raise unknown_name("mode", str(mode), get_args(Mode))
        return self._choose_mode(cast(Mode | None, mode))

    def _choose_mode(self, mode: Mode | None) -> Mode:
        return "normalised"  # by itself

    def refuse_spelling(self) -> None:
        """Raise an error if the model has no spelling model."""
        raise UserError(
            f"'{self.name}' is not a run, and only runs have a spelling model: leave out {argument('spell')}, or use "
            "runs alone."
        )

    # Text and words.

    def words(self, text: str) -> list[str]:
        """Cut a text into the words of one sentence, even if it has sentence marks: a hypothesis must stay whole."""
        if not isinstance(text, str):
            raise UserError(f"A text is {text!r:.60}: give a string.")
        return [word for sentence in self.normaliser(text.replace("\n", " ")) for word in sentence]

    def encode(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Give the ids of a sentence's words, with `</s>` at the end."""
        return self.vocabulary.encode(Tokens.of([words if isinstance(words, str) else list(words)]).words)

    # Scores.

    def score(
        self, texts: Iterable[str], *, mode: Mode | None = None, carry: bool = False, spell: bool = False
    ) -> list[ScoredSentence]:
        """Score sentences: ln p of every word and of `</s>`, in the order of the sentences.

        Each sentence starts without context; with `carry`, runs continue from where the previous sentence ended.
        With `spell` an unknown word has a probability of its own: p(<unk>) · p(its spelling).
        """
        if isinstance(texts, str):
            raise UserError("The sentences to score are one string: give a list of them, such as ['a sentence'].")
        return list(self.stream(map(self.words, texts), mode=mode, carry=carry, spell=spell))

    def score_words(
        self,
        sentences: Iterable[Words],
        *,
        mode: Mode | None = None,
        share: bool = False,
        after: Sequence[State] | None = None,
        spell: bool = False,
    ) -> WordScores:
        """Score sentences that are already cut into words, many together: see `log_probs`."""
        return self.log_probs(Tokens.of(sentences), mode=mode, share=share, spell=spell, after=after)

    def stream(
        self, sentences: Iterable[str | Words], *, mode: Mode | None = None, carry: bool = False, spell: bool = False
    ) -> Iterator[ScoredSentence]:
        """Score a stream of texts, or of sentences that are cut into words, in bounded memory: see `score`."""
        words = (self.words(one) if isinstance(one, str) else one for one in sentences)
        texts = map(Tokens.of, batches(words, lambda one: max(len(one), MIN_WORDS), BLOCK_WORDS))
        return itertools.chain.from_iterable(self.score_blocks(texts, mode=mode, carry=carry, spell=spell))

    def score_blocks(
        self, texts: Iterable[Tokens], *, mode: Mode | None = None, carry: bool = False, spell: bool = False
    ) -> Iterator[WordScores]:
        """Score a text that comes in blocks of sentences: see `score`."""
        if spell:
            self.refuse_spelling()
        mode, states = self.choose_mode(mode), cast(list[State] | None, [self.start()])
        for text in texts:
            if not carry:
                yield self.log_probs(text, mode=mode, spell=spell)
                continue
            scores = self.log_probs(text.joined(), mode=mode, spell=spell, after=states, keep_states=True)
            states = scores.states
            yield replace(scores, text=replace(scores.text, num_words_S=text.num_words_S), states=None)

    def sums(self, text: Tokens, *, mode: Mode | None = None) -> Sums:
        """Score sentences where no single word is asked for."""
        return self.log_probs(text, mode=mode).sums()

    def rescore(
        self,
        hypotheses: Sequence[str | tuple[str, float]],
        *,
        score_weight: float = 1.0,
        lm_weight: float = 1.0,
        word_penalty: float = 0.0,
        mode: Mode | None = None,
        after: State | None = None,
    ) -> list[RescoredHypothesis]:
        """Sort the hypotheses of one utterance, texts or (text, score) pairs, the best first.

        Equal ones keep their order.

        total = score_weight · score + lm_weight · ln p − word_penalty · words; a higher score is better. With `after`,
        a state from `start` or `read`, the earlier utterances are the context of ln p.
        """
        from bnce.scoring.weights import Weights, count_words

        if isinstance(hypotheses, str):
            raise UserError("The hypotheses are one string: give a list of them, such as ['one', ('another', -3.5)].")
        pairs = [_with_score(one) for one in hypotheses]
        if after is not None:
            self._check_state(after)
        weights = Weights(am_weight=score_weight, lm_weight=lm_weight, word_penalty=word_penalty)
        states = None if after is None else [after] * len(pairs)
        scores = self.score_words((self.words(one) for one, _ in pairs), mode=mode, share=True, after=states)
        found = []
        for place, ((own, score), log_prob) in enumerate(zip(pairs, scores.totals.tolist(), strict=True)):
            total = float(weights.total(am=score, lm=log_prob, num_words=count_words(own)))
            found.append(RescoredHypothesis(own, total, score, log_prob, place))
        return sorted(found, key=lambda one: -one.total)

    # States and next words.

    def start(self) -> State:
        """Give the state at the start of a text, with nothing before it."""
        return None

    def _is_state(self, state: State) -> bool:
        """Whether something can be a state of this model."""
        return isinstance(state, type(self.start()))

    def _check_state(self, state: State) -> None:
        if not self._is_state(state):
            raise UserError(
                f"The state is {shown(state)}: give one that start or read of the same model returned, such as "
                "model.read(model.start(), 'an earlier sentence')."
            )

    def read(self, state: State, text: str) -> State:
        """Give the state after one more sentence and its `</s>`, for the next sentence of the same text."""
        self._check_state(state)
        return self.advance_all([state], Tokens.of([self.words(text)]))[0]

    def advance(self, state: State, word: str) -> State:
        """Give the state after one more word."""
        return self.advance_all([state], Tokens.of([[word]], end=False))[0]

    def next_log_probs(self, state: State, words: Words, *, mode: Mode | None = None) -> Floats:
        """Compute ln p of each of these words as the next word."""
        text = Tokens.of([[word] for word in words], end=False)
        return self.log_probs(text, mode=mode, share=True, after=[state] * len(words)).log_prob_N

    def next_words(self, text: str = "", k: int = 10, *, mode: Mode | None = None) -> list[NextWord]:
        """Find the k most likely words after a text, the most likely first, including `</s>` and `<unk>`.

        The order is exact in both modes.
        """
        return self.next_words_after([self.words(text)], k, mode=mode)[0]

    def next_words_after(
        self, prompts: Sequence[Words], k: int = 10, *, mode: Mode | None = None
    ) -> list[list[NextWord]]:
        """Find the k most likely words after each prompt; prompts are lists of words."""
        if whole_number("The number of next words", k, None) < 1:
            raise UserError(f"The number of next words is {k}: it must be 1 or more.")
        text = Tokens.of(prompts, end=False)
        mode = self.choose_mode(mode)
        states = self.advance_all([self.start()] * len(text), text)
        return self._likeliest(states, k, mode) if states else []

    def _likeliest(self, states: Sequence[State], k: int, mode: Mode) -> list[list[NextWord]]:
        """Find the most likely words, here state by state."""
        spelt, found = self.vocabulary.words, []
        for state in states:
            log_prob_V = self.distribution(state, mode=mode)
            places = highest(log_prob_V[None], k)[0].tolist()
            found.append([NextWord(spelt[place], float(log_prob_V[place])) for place in places])
        return found

    def generate(
        self, prompt: str = "", num_texts: int = 1, max_words: int = 40, sampling: Sampling | None = None, seed: int = 1
    ) -> list[str]:
        """Continue a prompt in several ways; a text that was cut off at `max_words` ends in `…`."""
        check_texts(num_texts, max_words, seed)
        words = self.words(prompt)
        texts = []
        for made in self._continue(words, num_texts, max_words, sampling or Sampling(), seed):
            ended = bool(made) and made[-1] == END
            spelt = self.vocabulary.decode(made[:-1] if ended else made)
            texts.append(" ".join([*words, *spelt]) + ("" if ended else " …"))
        return texts

    def _continue(self, words: Words, num_texts: int, max_words: int, sampling: Sampling, seed: int) -> list[list[int]]:
        """Continue words in several ways, each up to `</s>` or `max_words` words: the ids of the new words."""
        spelt = self.vocabulary.words
        generator = np.random.default_rng(seed)
        prompt = functools.reduce(self.advance, words, self.start())
        texts: list[list[int]] = []
        for _ in range(num_texts):
            state, made = prompt, list[int]()
            while len(made) < max_words and END not in made[-1:]:
                made += sample_words(self.distribution(state, mode="normalised")[None], sampling, generator).tolist()
                state = self.advance(state, spelt[made[-1]])
            texts.append(made)
        return texts

    def scorer(self) -> Any:
        """Make a scorer for beam searches: `start`, `advance` and `score`, with word ids and natural logarithms."""
        return _WordScorer(self)


class _WordScorer:
    """Answers a beam search for a model that has no network of its own: states and ids of words, side by side."""

    def __init__(self, model: Model) -> None:
        self.model, self.start = model, model.start

    def advance(self, states: Sequence[State], words: Any) -> list[State]:
        """Move each state on by one word."""
        return self.model.advance_all(states, self._text(np.asarray(words)))

    def score(self, states: Sequence[State], words: Any, mode: Mode | None = None) -> Floats:
        """Compute ln p of words after states: one each (B,) or several each (B, K)."""
        ids = np.asarray(words)
        after = [state for state in states for _ in range(ids.size // max(1, len(states)))]
        return self.model.log_probs(self._text(ids), mode=mode, after=after).log_prob_N.reshape(ids.shape)

    def _text(self, ids: NDArray[np.int64]) -> Tokens:
        return Tokens.of([[word] for word in self.model.vocabulary.decode(ids.ravel().tolist())], end=False)


def _with_score(hypothesis: Any) -> tuple[str, float]:
    """Give a hypothesis with its score; a text alone has the score 0."""
    if isinstance(hypothesis, str):
        return hypothesis, 0.0
    try:
        text, score = hypothesis
    except (TypeError, ValueError):
        text, score = None, None
    if not isinstance(text, str):
        raise UserError(
            f"A hypothesis is {shown(hypothesis)}: give a text, or a text and its score, such as ('one', -3.5)."
        )
    try:
        number = float(score)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"The score of the hypothesis '{text}' is {score}: it must be a finite number.")
    return text, number
