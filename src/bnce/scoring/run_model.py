"""A trained run as a language model: its network, many sentences side by side, and its words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bnce.corpus.vocabulary import UNK, Vocabulary
from bnce.errors import UserError
from bnce.evaluation.evaluate import num_words_seen
from bnce.language_model import LanguageModel
from bnce.machine.devices import choose_device
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import load_model
from bnce.runs.unknown_words import UnknownWords
from bnce.scoring.batches import Check, SentenceScorer
from bnce.scoring.generate import Sampling, generate, top_words
from bnce.scoring.model import Model, Reader, Words, check_num_next
from bnce.scoring.prefixes import score_prefixes
from bnce.scoring.scored import Floats, NextWord, WordScores
from bnce.scoring.scorer import Scorer, State, gather, refuse_unnormalised
from bnce.text.normalise import UNKNOWN_WORD, Normaliser

# Of so many words of the vocabulary one or more: then all of them are scored at once.
MANY_WORDS = 16


class RunReader(Reader):
    """Scores sentences side by side, or carried over as one stream."""

    model: RunModel

    def __init__(self, model: RunModel, scorer: SentenceScorer) -> None:
        super().__init__(model, scorer.normalised)
        self._scorer = scorer

    def score(self, sentences: Sequence[Words]) -> list[WordScores]:
        """Score the next sentences, all of them at once."""
        ids = [self.model.encode(words) for words in sentences]
        return self.model.with_shares(sentences, ids, self._scorer.score(ids))

    def begin_document(self) -> None:
        """Go back to the state at the start of a text."""
        self._scorer.begin_document()

    def check(self) -> Check | None:
        """Compare the constant with the softmax at the positions that were kept."""
        return self._scorer.check()


class RunModel(Model):
    """A network with its words, and where there is one the list of those that share `<unk>`: a run directory's."""

    kind = "run"

    def __init__(
        self,
        network: LanguageModel,
        vocabulary: Vocabulary,
        normaliser: Normaliser,
        unknown_words: UnknownWords | None = None,
        name: str = "run",
    ) -> None:
        self.network, self.normaliser, self.name = network.eval(), normaliser, name
        self.unknown_words = unknown_words
        self._vocabulary = vocabulary

    @property
    def vocabulary(self) -> Vocabulary:
        """The words, each with its id."""
        return self._vocabulary

    @property
    def has_constant(self) -> bool:
        """A run has a constant Z, or was trained with the softmax in place of one."""
        return True

    @property
    def self_normalised(self) -> bool:
        """Whether the run was trained with a loss that makes it self-normalised."""
        return self.log_z is not None

    @property
    def log_z(self) -> float | None:
        """The constant ln Z of unnormalised probabilities; None for a model that was trained with the softmax."""
        return float(self.network.output.log_z) if self.network.output.normalises else None

    @property
    def max_context(self) -> int | None:
        """How many words before it a word is predicted from; None for a body whose state keeps all of them."""
        return num_words_seen(self.network)

    @property
    def device(self) -> str:
        """Where the network is."""
        return str(self.network.embedding.device)

    def refuse_unnormalised(self) -> None:
        """Refuse unnormalised probabilities if the run was trained with the softmax."""
        refuse_unnormalised(self.network)

    def score_words(
        self,
        sentences: Sequence[Words],
        *,
        normalised: bool = False,
        share_prefixes: bool = False,
        after: Sequence[State] | None = None,
    ) -> list[WordScores]:
        """Score sentences, in one tree where they begin alike and else side by side."""
        if not share_prefixes and after is None:
            return self.reader(normalised=normalised).score(sentences)
        ids = [self.encode(words) for words in sentences]
        return self.with_shares(sentences, ids, score_prefixes(self.scorer(), ids, normalised, after))

    def reader(self, *, normalised: bool = False, carry: bool = False, num_checked: int | None = None) -> RunReader:
        """Make what scores a text sentence by sentence; `num_checked` positions are kept for its `check`."""
        scorer = SentenceScorer(self.network, normalised=normalised, carry=carry, num_checked=num_checked)
        return RunReader(self, scorer)

    def with_shares(
        self, sentences: Sequence[Words], ids: Sequence[NDArray[np.int64]], log_probs: Sequence[Floats]
    ) -> list[WordScores]:
        """Put scores together; unknown words get their shares of `<unk>`, and those without one stay OOV."""
        found = []
        for words, numbers, scores in zip(sentences, ids, log_probs, strict=True):
            shared, oov = self._share(words, numbers, scores)
            order = self.network.num_context + 2 if self.network.num_context else len(numbers) + 1
            found.append(WordScores(shared, oov, [min(place + 2, order) for place in range(len(numbers))]))
        return found

    def start(self) -> State:
        """Give the network's state at the start of a text."""
        return self.scorer().start()

    def read_words(self, states: Sequence[State], sentences: Sequence[Words]) -> list[State]:
        """Move states on by a sentence each, side by side."""
        return self.scorer().read(states, [self.encode(words).tolist() for words in sentences])

    def advance(self, state: State, word: str) -> State:
        """Give the state after one more word."""
        return self.scorer().advance([state], self.vocabulary.encode([word]).tolist())[0]

    def next_log_probs(self, state: State, words: Words, *, normalised: bool = False) -> Floats:
        """Compute ln p of words; where they are much of the vocabulary, in one pass over it."""
        ids, scorer = self.vocabulary.encode(words), self.scorer()
        if len(ids) * MANY_WORDS < len(self.vocabulary):
            found = scorer.score([state], torch.from_numpy(ids[None]), normalised)[0]
        else:
            found = scorer.score_all(state, normalised)[torch.from_numpy(ids)]
        return self._share(words, ids, found.double().cpu().numpy())[0]

    def scorer(self) -> Scorer:
        """Make a scorer for beam searches: `start`, `advance` and `score`, with word ids and natural logarithms."""
        return Scorer(self.network)

    def next_words_after(
        self, prompts: Sequence[Words], k: int = 10, *, normalised: bool = True
    ) -> list[list[NextWord]]:
        """Find the k most likely words after each of several prompts, in one pass for all."""
        check_num_next(k)
        if not normalised:
            self.refuse_unnormalised()
        if not prompts:
            return []
        scorer = self.scorer()
        ids = [self.vocabulary.encode(prompt).tolist() for prompt in prompts]
        states = scorer.read([scorer.start()] * len(ids), ids)
        score_BK, word_BK, log_normaliser_B = top_words(self.network.output, gather(states).hidden_BD, k)
        constants = log_normaliser_B.tolist() if normalised else [float(self.network.output.log_z)] * len(ids)
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
        return generate(self.network, ids, num_texts, max_words, sampling, seed)

    def _share(self, words: Words, ids: NDArray[np.int64], log_probs: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        """Give unknown words their shares of `<unk>`, and tell which of the words are OOV."""
        oov = ids == UNK
        if self.unknown_words is not None and oov.any():
            log_probs = log_probs.copy()
            for place in np.flatnonzero(oov).tolist():
                log_share = self.unknown_words.log_share(words[place])
                # <unk> in a text stands for any unknown word: it has the whole, and is none that is known.
                if log_share is not None and words[place] != UNKNOWN_WORD:
                    log_probs[place] += log_share
                    oov[place] = False
        return log_probs, oov


def load_run(run: str | Path, device: str = "cpu") -> RunModel:
    """Load the best model of a run directory; the device is auto, cpu, cuda or cuda:N."""
    opened = RunDirectory.open(Path(run))
    if opened.vocabulary.unit != "word":
        raise UserError(f"'{run}' is a run over {opened.vocabulary.unit}s: only 'bnce evaluate' can use it.")
    network = load_model(opened, str(choose_device(device)))
    return RunModel(network, opened.vocabulary, opened.normaliser, UnknownWords.of_run(opened.path), str(run))
