"""What the model is asked, and many such questions answered in as few passes through it as there are kinds.

Logarithms are natural.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bnce.scoring.model import Model

# What a normalised position counts in a batch: it passes over the vocabulary, and others must not wait for thousands.
EXACT_COST = 16


@dataclass(frozen=True, eq=False)
class SentenceQuestion:
    """What the model says of a sentence's words and its `</s>`: `WordScores`."""

    words: list[str]
    normalised: bool
    spell: bool = field(default=False, kw_only=True)

    @property
    def cost(self) -> int:
        """How much of a batch it takes up, in words."""
        return (len(self.words) + 1) * (EXACT_COST if self.normalised else 1)


@dataclass(frozen=True, eq=False)
class HypothesesQuestion:
    """The same of hypotheses that share prefixes: a list of `WordScores`."""

    hypotheses: list[list[str]]
    normalised: bool

    @property
    def costs(self) -> list[int]:
        """How much of a batch each takes up, in words; what is shared is not known yet."""
        return [(len(words) + 1) * (EXACT_COST if self.normalised else 1) for words in self.hypotheses]

    @property
    def cost(self) -> int:
        """How much of a batch all take up."""
        return sum(self.costs)

    def pieces(self, max_cost: int) -> list[HypothesesQuestion]:
        """Cut it between hypotheses, so that others get in between; a piece is larger only where one hypothesis is."""
        pieces: list[HypothesesQuestion] = []
        room = 0
        for words, cost in zip(self.hypotheses, self.costs, strict=True):
            if cost > room or not pieces:
                pieces.append(HypothesesQuestion([], self.normalised))
                room = max_cost
            pieces[-1].hypotheses.append(words)
            room -= cost
        return pieces


@dataclass(frozen=True, eq=False)
class NextQuestion:
    """The likeliest words after others: a list of `NextWord`."""

    words: list[str]
    num_next: int
    normalised: bool

    @property
    def cost(self) -> int:
        """How much of a batch it takes up, in words; one position passes over the vocabulary."""
        return len(self.words) + EXACT_COST


Question = SentenceQuestion | HypothesesQuestion | NextQuestion


class Answerer:
    """Answers questions of all kinds for one model; one thread calls it."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._ways: dict[type[Question], Callable[[list[Any], bool], Sequence[Any]]] = {
            SentenceQuestion: self._sentences,
            HypothesesQuestion: self._hypotheses,
            NextQuestion: self._next_words,
        }

    def answer(self, questions: Sequence[Question]) -> list[Any]:
        """Answer in the order of the questions; where something failed the error stands as the answer."""
        groups: dict[tuple[type[Question], bool, bool], list[int]] = {}
        for place, question in enumerate(questions):
            spell = isinstance(question, SentenceQuestion) and question.spell
            groups.setdefault((type(question), question.normalised, spell), []).append(place)
        answers: list[Any] = [None] * len(questions)
        for (kind, normalised, _), places in groups.items():
            try:
                found = self._ways[kind]([questions[place] for place in places], normalised)
            except Exception as error:
                # Other kinds of question in the batch belong to other requests.
                found = [error] * len(places)
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        return answers

    def _sentences(self, questions: list[SentenceQuestion], normalised: bool) -> Sequence[Any]:
        words = [question.words for question in questions]
        return self.model.score_words(words, normalised=normalised, spell=questions[0].spell)

    def _hypotheses(self, questions: list[HypothesesQuestion], normalised: bool) -> Sequence[Any]:
        together = [words for question in questions for words in question.hypotheses]
        scores = iter(self.model.score_words(together, normalised=normalised, share_prefixes=True))
        return [[next(scores) for _ in question.hypotheses] for question in questions]

    def _next_words(self, questions: list[NextQuestion], normalised: bool) -> Sequence[Any]:
        most = max(question.num_next for question in questions)
        found = self.model.next_words_after([question.words for question in questions], most, normalised=normalised)
        return [words[: question.num_next] for question, words in zip(questions, found, strict=True)]
