"""A trained run as a language model: its network, its words, and the spelling model that it may have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnce.corpus.cutter import Tokens
from bnce.corpus.spelling import SpellingModel
from bnce.corpus.vocabulary import END, UNK, Vocabulary
from bnce.engine.beam import Scorer
from bnce.engine.network import Mode, Network, Query, Values
from bnce.engine.packer import score, score_to_end
from bnce.engine.sampling import Sampling, generate
from bnce.engine.states import State, gather
from bnce.errors import UserError
from bnce.runs.directory import Run
from bnce.runs.model_file import open_network
from bnce.scoring.model import Model, Words
from bnce.scoring.results import Bools, Floats, Ints, NextWord, WordScores
from bnce.text.normalise import UNKNOWN_WORD, Normaliser

# Of so many words of the vocabulary one or more: then all of them are scored at once.
MANY_WORDS = 16


class RunModel(Model):
    """A network with its words; PyTorch or NumPy computes it."""

    kind = "run"
    _has_modes = True  # or it was trained with the softmax in place of a constant

    def __init__(
        self,
        network: Network,
        vocabulary: Vocabulary,
        normaliser: Normaliser,
        name: str = "run",
        spelling: SpellingModel | None = None,
        target_counts: NDArray[np.int64] | None = None,
    ) -> None:
        self.network, self.normaliser, self.name, self.spelling = network, normaliser, name, spelling
        self.network.name = f"'{name}'"
        self.device, self.max_context = network.device, network.num_words_seen
        self._vocabulary, self.target_counts = vocabulary, target_counts
        self._scorer = Scorer(network)  # which keeps the state at the start of a text

    @property
    def vocabulary(self) -> Vocabulary:
        """The words, each with its id."""
        return self._vocabulary

    @property
    def log_z(self) -> float | None:
        """The constant ln Z of unnormalised probabilities; None for a softmax that was not calibrated."""
        return self.network.log_z if self.network.normalises else None

    def _choose_mode(self, mode: Mode | None) -> Mode:
        return self.network.choose_mode(mode)

    def refuse_spelling(self) -> None:
        """Refuse to spell if the run has no spelling model."""
        if self.spelling is None:
            raise UserError(
                f"'{self.name}' has no spelling model, because its corpus has none: prepare the corpus again and train "
                "with it."
            )

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
        """Compute ln p of every word; with `spell` unknown words get their shares of `<unk>`, else they are OOV."""
        if spell:
            self.refuse_spelling()
        mode = self.choose_mode(mode)
        is_exact = mode == "normalised"
        text, query = text.encoded(self.vocabulary), Query(log_z=is_exact)
        values, states = self.answer(text, query, share=share, after=after, keep_states=keep_states)
        log_prob_N: Floats = values.log_probs(None if is_exact else self.network.log_z).astype(np.float64, copy=False)
        assert text.ids is not None
        oov_N: Bools = text.ids == UNK
        if spell:
            self._spell(text.words, log_prob_N, oov_N)
        return WordScores(text, log_prob_N, oov_N, self._ngram_lengths(text), mode, states, values.log_z_N)

    def answer(
        self,
        text: Tokens,
        query: Query,
        *,
        share: bool = False,
        after: Sequence[State] | None = None,
        keep_states: bool = False,
    ) -> tuple[Values, list[State] | None]:
        """Ask the network about every word of an encoded text; `keep_states` gives the states after it, too."""
        if keep_states:
            return score_to_end(self.network, text.sequences, query, after)
        return score(self.network, text.sequences, query, after=after, share=share), None

    def _spell(self, words: Words, log_prob_N: Floats, oov_N: Bools) -> None:
        """Add ln p of their spelling to unknown words, which are OOV no more; each word is spelt once."""
        assert self.spelling is not None  # `refuse_spelling` has looked
        # <unk> in a text stands for any unknown word: it has the whole, and is none that is known.
        place_U = [place for place in np.flatnonzero(oov_N).tolist() if words[place] != UNKNOWN_WORD]
        unknown = list(dict.fromkeys(words[place] for place in place_U))
        log_share = dict(zip(unknown, self.spelling.log_probs(unknown).tolist(), strict=True))
        log_prob_N[place_U] += [log_share[words[place]] for place in place_U]
        oov_N[place_U] = False

    def _ngram_lengths(self, text: Tokens) -> Ints:
        """Say for every word how many words of its sentence its probability is about: the start is one, and itself."""
        assert text.ids is not None
        place_N = np.arange(len(text.words))
        begins_N = np.zeros(len(place_N), dtype=bool)
        begins_N[(np.cumsum(text.num_words_S) - text.num_words_S)[text.num_words_S > 0]] = True
        begins_N[1:] |= text.ids[:-1] == END
        num_before_N = 1 + place_N - np.maximum.accumulate(np.where(begins_N, place_N, 0))
        return 1 + (num_before_N if self.max_context is None else np.minimum(num_before_N, self.max_context))

    def start(self) -> State:
        """Give the network's state at the start of a text."""
        return self._scorer.start()

    def advance_all(self, states: Sequence[State], text: Tokens) -> list[State]:
        """Move states on by a sequence each, side by side."""
        return score_to_end(self.network, text.encoded(self.vocabulary).sequences, None, states)[1]

    def distribution(self, state: State, *, mode: Mode | None = None) -> Floats:
        """Compute ln p of every word, in one pass over the vocabulary."""
        mode = self.choose_mode(mode)
        hidden_1D = state.states.hidden_BD[state.place : state.place + 1]
        score_V = self.network.numpy(self.network.all_scores(hidden_1D))[0].astype(np.float64)
        log_z = float(np.logaddexp.reduce(score_V)) if mode == "normalised" else self.network.log_z
        log_prob_V: Floats = score_V - log_z
        return log_prob_V

    def next_log_probs(self, state: State, words: Words, *, mode: Mode | None = None) -> Floats:
        """Compute ln p of words; where they are much of the vocabulary, in one pass over it."""
        if len(words) * MANY_WORDS < len(self.vocabulary):
            return super().next_log_probs(state, words, mode=mode)
        return self.distribution(state, mode=mode)[self.vocabulary.encode(words)]

    def scorer(self) -> Scorer:
        """Make a scorer for beam searches: `start`, `advance` and `score`, with word ids and natural logarithms."""
        return self._scorer

    def _likeliest(self, states: Sequence[State], k: int, mode: Mode) -> list[list[NextWord]]:
        """Find the most likely words in one pass for all states."""
        score_BK, word_BK, log_z_B = self.network.top_words(gather(states).hidden_BD, k)
        constants = log_z_B.tolist() if mode == "normalised" else [self.network.log_z] * len(states)
        rows = zip(word_BK.tolist(), score_BK.tolist(), constants, strict=True)
        return [
            [
                NextWord(word, score - constant)
                for word, score in zip(self.vocabulary.decode(words), scores, strict=True)
            ]
            for words, scores, constant in rows
        ]

    def _continue(self, words: Words, num_texts: int, max_words: int, sampling: Sampling, seed: int) -> list[list[int]]:
        """Continue words in several ways, all texts side by side."""
        return generate(self.network, self.vocabulary.encode(words).tolist(), num_texts, max_words, sampling, seed)


def load_run(
    path: str | Path, device: str = "cpu", precision: str = "float32", *, is_for_much: bool = False
) -> RunModel:
    """Load the best model of a run directory; the device is auto, cpu, cuda or cuda:N: see `open_network`."""
    run = Run.open(Path(path))
    network = open_network(run, device, precision, is_for_much=is_for_much)
    spelling = SpellingModel.of_run(run.path)
    return RunModel(network, run.vocabulary, run.normaliser, str(path), spelling, run.target_counts)
