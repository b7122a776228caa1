"""A run behind the interface of the Python package `kenlm`: code that was written for n-gram models runs with it.

    from bnce import kenlm  # was: import kenlm
    model = kenlm.Model("runs/relu-lstm")
    model.score("this is a sentence", bos=True, eos=True)

The names, arguments and results are those of kenlm: log10 probabilities, words between blanks. A word is read in the
form of the run's training text. A run or a mixture always starts at the start of a text, also with `bos=False` and
`NullContextWrite`. An n-gram model gives what kenlm gives.
"""

# ruff: noqa: N802 (the names are kenlm's)

from __future__ import annotations

import copy
import functools
import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bnce.engine.network import Mode
from bnce.errors import UserError
from bnce.rescoring.decoders import Step, WordSteps
from bnce.scoring import model as scoring
from bnce.scoring.loading import load
from bnce.scoring.ngram_model import NgramModel
from bnce.text.normalise import END_WORD


class FullScoreReturn(NamedTuple):
    """The log10 probability of a word, the number of words it depends on and itself, and whether it is unknown."""

    log_prob: float
    ngram_length: int
    oov: bool


@functools.total_ordering
class State:
    """A history. Two are equal if their words are (of an n-gram model, those it sees). A model writes into it."""

    __slots__ = ("history", "key", "own")

    def __init__(self) -> None:
        self.history: tuple[str, ...] | None = None
        self.own: Any = None
        self.key: Any = None  # what is compared

    @property
    def _rank(self) -> tuple[bool, Any]:
        """An empty state comes before all others."""
        return self.key is not None, self.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self._rank == other._rank

    def __lt__(self, other: State) -> bool:
        return self._rank < other._rank

    def __hash__(self) -> int:
        return hash(self.key)

    def __deepcopy__(self, memo: Any = None) -> State:
        return copy.copy(self)


class Config:
    """What kenlm's models are loaded with; a run has no use for it."""

    load_method: Any = None
    show_progress = False
    arpa_complain: Any = None


class Model:
    """A run, a mixture or an n-gram model, from its path or from `bnce.load`."""

    def __init__(
        self, path: str | bytes | Path | scoring.Model, config: Config | None = None, *, mode: Mode | None = None
    ) -> None:
        self.model = path if isinstance(path, scoring.Model) else load(os.fsdecode(path))
        self.path = os.fsencode(os.path.abspath(self.model.name))
        self._steps = WordSteps(self.model, mode)
        self._kenlm = self.model.model if isinstance(self.model, NgramModel) else None

    @property
    def order(self) -> int:
        """The words of a history that a decoder should compare, and one more."""
        return self._steps.order

    def score(self, sentence: str | bytes, bos: bool = True, eos: bool = True) -> float:
        """Give the log10 probability of a sentence, with that of `</s>` unless `eos` is false."""
        return sum(log_prob for log_prob, _, _ in self.full_scores(sentence, bos, eos))

    def perplexity(self, sentence: str | bytes) -> float:
        """Give the perplexity of a sentence, with `</s>`."""
        return float(10.0 ** (-self.score(sentence) / (len(_text(sentence).split()) + 1)))

    def full_scores(self, sentence: str | bytes, bos: bool = True, eos: bool = True) -> Iterator[FullScoreReturn]:
        """Give for every word and `</s>` its log10 probability, the words that depends on, and if it is unknown."""
        read = [self._steps.read(word) for word in _text(sentence).split()]
        words = [own for words in read for own in words]
        if self._kenlm:
            scores = self._kenlm.full_scores(" ".join(words), bos=bos, eos=eos)
        else:
            (found,) = self.model.score_words([words], mode=self._steps.mode)
            scores = zip(
                (found.log_probs / math.log(10)).tolist(), found.ngram_lengths.tolist(), found.oov.tolist(), strict=True
            )
        for own in [*read, *([(END_WORD,)] if eos else [])]:
            log_probs, lengths, oov = zip(*itertools.islice(scores, len(own)), strict=True)
            yield FullScoreReturn(sum(log_probs), lengths[-1], any(oov))

    def BeginSentenceWrite(self, state: State) -> None:
        """Make a state that of the start of a sentence."""
        self._write(state, (), self.model.start())

    def NullContextWrite(self, state: State) -> None:
        """Make a state one without context: for a run or a mixture, that of the start of a text."""
        own = self.model.start()
        if self._kenlm:
            own = type(own)()  # the model keeps its start
            self._kenlm.NullContextWrite(own)
        self._write(state, (), own)

    def BaseScore(self, in_state: State, word: str, out_state: State) -> float:
        """Give the log10 probability of a word after a state, and write the state after it."""
        return self.BaseFullScore(in_state, word, out_state).log_prob

    def BaseFullScore(self, in_state: State, word: str, out_state: State) -> FullScoreReturn:
        """Do the same, and say how many words that depends on, and whether the word is unknown."""
        if in_state.history is None:
            raise UserError("The state is empty: write the start of a sentence into it with BeginSentenceWrite.")
        step = self._steps.step(in_state.own, word)
        history = (*in_state.history, *step.words)
        length = self._ngram_length(step, history) if step.words else 0
        after = step.after
        if self._kenlm and history[-1:] == (END_WORD,):
            after = type(after)()  # the model would begin a sentence here, and KenLM goes on
            self._kenlm.BaseScore(step.last_state, END_WORD, after)
        self._write(out_state, history, after)
        return FullScoreReturn(step.log_prob / math.log(10), length, step.num_oov > 0)

    def _ngram_length(self, step: Step, history: tuple[str, ...]) -> int:
        """Count the words that the last probability depends on: the start of the text is one, and itself."""
        if self._kenlm:
            after = type(step.last_state)()
            return int(self._kenlm.BaseFullScore(step.last_state, history[-1], after).ngram_length)
        most = self.model.max_context
        return 1 + (len(history) if most is None else min(len(history), most))

    def __contains__(self, word: str | bytes) -> bool:
        return _text(word) in self._kenlm if self._kenlm else self.model.is_known(_text(word))

    def __repr__(self) -> str:
        return f"<Model from {os.path.basename(os.fsdecode(self.path))}>"

    def __reduce__(self) -> Any:
        return functools.partial(Model, mode=self._steps.mode), (self.path,)

    def _write(self, state: State, history: tuple[str, ...], own: Any) -> None:
        state.history, state.own = history, own
        state.key = own if self._kenlm else history


LanguageModel = Model


def _text(given: str | bytes) -> str:
    if isinstance(given, bytes):
        return given.decode()
    if not isinstance(given, str):
        raise TypeError(f"Cannot convert {type(given)} to string")
    return given
