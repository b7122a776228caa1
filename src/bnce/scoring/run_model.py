"""A trained run as a language model: its network, many sentences side by side, and its words."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.spelling import SpellingModel
from bnce.corpus.vocabulary import UNK, Vocabulary
from bnce.errors import UserError
from bnce.scoring.batches import Check, SentenceScorer
from bnce.scoring.engine import Ints, engine_of
from bnce.scoring.given import word_lists
from bnce.scoring.model import Model, Reader, Words, flat_words
from bnce.scoring.prefixes import flatten, score_prefixes, split
from bnce.scoring.sampling import Sampling, generate
from bnce.scoring.scored import Floats, NextWord, WordScores
from bnce.scoring.scorer import Scorer, State, gather
from bnce.text.normalise import UNKNOWN_WORD, Normaliser

# Of so many words of the vocabulary one or more: then all of them are scored at once.
MANY_WORDS = 16


class RunReader(Reader):
    """Scores sentences side by side, or carried over as one stream."""

    model: RunModel

    def __init__(self, model: RunModel, scorer: SentenceScorer, spell: bool) -> None:
        super().__init__(model, scorer.normalised, spell)
        self._scorer = scorer

    def score(self, sentences: Sequence[Words]) -> list[WordScores]:
        """Score the next sentences, all of them at once."""
        return self._score_with_ids(sentences)[0]

    def _score_with_ids(self, sentences: Sequence[Words]) -> tuple[list[WordScores], Iterable[list[int]]]:
        ids = self.model.encode_each(sentences)  # looked up once
        scores = self.model.put_together(sentences, ids, self._scorer.score(ids), self.spell)
        return scores, (own.tolist() for own in ids)

    def begin_document(self) -> None:
        """Go back to the state at the start of a text."""
        self._scorer.begin_document()

    def check(self) -> Check | None:
        """Compare the constant with the softmax at the positions that were kept."""
        return self._scorer.check()


class RunModel(Model):
    """A network with its words, and the spelling model that a run directory may have.

    The network is a run's in PyTorch, or that of an exported run in ONNX Runtime.
    """

    kind = "run"
    has_constant = True  # or it was trained with the softmax in place of one

    def __init__(
        self,
        network: Any,
        vocabulary: Vocabulary,
        normaliser: Normaliser,
        name: str = "run",
        spelling: SpellingModel | None = None,
        target_counts: NDArray[np.int64] | None = None,
    ) -> None:
        self.network, self.engine, self.normaliser, self.name = network, engine_of(network), normaliser, name
        self.engine.name = f"'{name}'"
        self.device, self.max_context = self.engine.device, self.engine.num_words_seen
        self.spelling, self._vocabulary, self._target_counts = spelling, vocabulary, target_counts

    @property
    def vocabulary(self) -> Vocabulary:
        """The words, each with its id."""
        return self._vocabulary

    @property
    def self_normalised(self) -> bool:
        """Whether the run was trained with a loss that makes it self-normalised, or calibrated."""
        return self.log_z is not None

    @property
    def is_exact(self) -> bool:
        """Whether unnormalised probabilities are exact, because of the output layer."""
        return self.engine.is_exact

    @property
    def log_z(self) -> float | None:
        """The constant ln Z of unnormalised probabilities; None for a softmax that was not calibrated."""
        return self.engine.log_z if self.engine.normalises else None

    def refuse_unnormalised(self) -> None:
        """Refuse unnormalised probabilities if the run was trained with the softmax."""
        self.engine.refuse_unnormalised()

    def refuse_spelling(self) -> None:
        """Refuse to spell if the run has no spelling model."""
        if self.spelling is None:
            raise UserError(
                f"'{self.name}' has no spelling model, because its corpus has none: prepare the corpus again and train "
                "with it."
            )

    def score_words(
        self,
        sentences: Sequence[Words],
        *,
        normalised: bool = False,
        share_prefixes: bool = False,
        after: Sequence[State] | None = None,
        spell: bool = False,
    ) -> list[WordScores]:
        """Score sentences, in one tree where they begin alike and else side by side."""
        sentences = word_lists(sentences)
        if after is None and (self.engine.attends or not share_prefixes):
            return self.reader(normalised=normalised, spell=spell).score(sentences)
        if spell:
            self.refuse_spelling()
        ids = self.encode_each(sentences)
        return self.put_together(sentences, ids, score_prefixes(self.scorer(), ids, normalised, after), spell)

    def reader(
        self, *, normalised: bool = False, carry: bool = False, spell: bool = False, num_checked: int | None = None
    ) -> RunReader:
        """Make what scores a text sentence by sentence; `num_checked` positions are kept for its `check`."""
        if spell:
            self.refuse_spelling()
        scorer = SentenceScorer(self.engine, normalised=normalised, carry=carry, num_checked=num_checked)
        return RunReader(self, scorer, spell)

    def put_together(
        self, sentences: Sequence[Words], ids: Sequence[Ints], log_probs: Sequence[Floats], spell: bool
    ) -> list[WordScores]:
        """Put scores together; with `spell` unknown words get their shares of `<unk>`, else they are OOV."""
        # All sentences at once: several operations for each would take longer than a small network.
        word_N, length_S = flatten(ids)
        log_prob_N, oov_N = np.concatenate([np.zeros(0), *log_probs]), word_N == UNK
        if spell:
            self._spell(flat_words(sentences), log_prob_N, oov_N)
        parts = split(log_prob_N, length_S), split(oov_N, length_S), self._ngram_lengths(length_S)
        return [WordScores(*one) for one in zip(*parts, strict=True)]

    def _spell(self, words: Words, log_prob_N: Floats, oov_N: NDArray[np.bool_]) -> None:
        """Add ln p of their spelling to unknown words, which are OOV no more; each word is spelt once."""
        assert self.spelling is not None  # `refuse_spelling` has looked
        # <unk> in a text stands for any unknown word: it has the whole, and is none that is known.
        place_U = [place for place in np.flatnonzero(oov_N).tolist() if words[place] != UNKNOWN_WORD]
        unknown = list(dict.fromkeys(words[place] for place in place_U))
        log_share = dict(zip(unknown, self.spelling.log_probs(unknown).tolist(), strict=True))
        log_prob_N[place_U] += [log_share[words[place]] for place in place_U]
        oov_N[place_U] = False

    def _ngram_lengths(self, length_S: Ints) -> list[list[int]]:
        """Say for every word how many words its probability is about: the start of the sentence is one, and itself."""
        longest = int(length_S.max(initial=0))
        most = longest if self.max_context is None else self.max_context
        lengths = [min(place, most) + 1 for place in range(1, longest + 1)]
        return [lengths[:length] for length in length_S.tolist()]

    def start(self) -> State:
        """Give the network's state at the start of a text."""
        return self.scorer().start()

    def is_state(self, state: State) -> bool:
        """Whether something is a state of a network."""
        return isinstance(state, State)

    def read_words(self, states: Sequence[State], sentences: Sequence[Words]) -> list[State]:
        """Move states on by a sentence each, side by side."""
        return self.scorer().read(states, [self.encode(words).tolist() for words in sentences])

    def advance(self, state: State, word: str) -> State:
        """Give the state after one more word."""
        return self.scorer().read([state], [self.vocabulary.encode([word]).tolist()])[0]

    def next_log_probs(self, state: State, words: Words, *, normalised: bool = False) -> Floats:
        """Compute ln p of words; where they are much of the vocabulary, in one pass over it."""
        ids, scorer = self.vocabulary.encode(words), self.scorer()
        if len(ids) * MANY_WORDS < len(self.vocabulary):
            found = self.engine.numpy(scorer.score([state], ids[None], normalised))[0]
        else:
            found = self.engine.numpy(scorer.score_all(state, normalised))[ids]
        log_probs: Floats = found.astype(np.float64)
        return log_probs

    def scorer(self) -> Scorer:
        """Make a scorer for beam searches: `start`, `advance` and `score`, with word ids and natural logarithms."""
        return Scorer(self.engine)

    def _after_each(self, prompts: Sequence[Words]) -> list[State]:
        scorer = self.scorer()
        ids = [self.vocabulary.encode(prompt).tolist() for prompt in prompts]
        return scorer.read([scorer.start()] * len(ids), ids)

    def _likeliest(self, prompts: Sequence[Words], k: int, normalised: bool) -> list[list[NextWord]]:
        """Find the most likely words in one pass for all prompts."""
        states = self._after_each(prompts)
        score_BK, word_BK, log_normaliser_B = self.engine.top_words(gather(states).hidden_BD, k)
        constants = log_normaliser_B.tolist() if normalised else [self.engine.log_z] * len(states)
        return [
            [
                NextWord.of(word, score - constant)
                for word, score in zip(self.vocabulary.decode(words), scores, strict=True)
            ]
            for words, scores, constant in zip(word_BK.tolist(), score_BK.tolist(), constants, strict=True)
        ]

    def continue_words(
        self, words: Words, num_texts: int, max_words: int, sampling: Sampling, seed: int
    ) -> list[list[int]]:
        """Continue words in several ways, all texts side by side; returns the ids of the new words."""
        ids = self.vocabulary.encode(words).tolist()
        return generate(self.engine, ids, num_texts, max_words, sampling, seed)

    def is_known(self, word: str) -> bool:
        """Whether a word is in the vocabulary."""
        return int(self.vocabulary.encode([word])[0]) != UNK

    def log10_frequency(self, word: str) -> float | None:
        """Give log10 of a word's share of the training text, in which `</s>` counts."""
        number = int(self.vocabulary.encode([word])[0])
        if self._target_counts is None or number == UNK or not self._target_counts[number]:
            return None
        return math.log10(self._target_counts[number] / self._num_targets)

    @functools.cached_property
    def _num_targets(self) -> int:
        return 0 if self._target_counts is None else int(self._target_counts.sum())


def load_run(run: str | Path, device: str = "cpu") -> RunModel:
    """Load the best model of a run directory; the device is auto, cpu, cuda or cuda:N."""
    from bnce.machine.devices import choose_device
    from bnce.runs.directory import Run
    from bnce.runs.model_file import load_model

    opened = Run.open(Path(run))
    network = load_model(opened, str(choose_device(device)))
    spelling = SpellingModel.of_run(opened.path)
    return RunModel(network, opened.vocabulary, opened.normaliser, str(run), spelling, opened.target_counts)
