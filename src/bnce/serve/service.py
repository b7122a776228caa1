"""What the endpoints do, without HTTP: a request checked against the limits, put to the model, and written up.

Long texts are cut into words, and long answers written, in the side thread: a long request must not keep short ones
waiting. What is too long is refused as soon as so much of it has been seen.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from bnce import files
from bnce.scoring.model import Model
from bnce.scoring.scored import ScoredSentence, Totals, WordScores
from bnce.scoring.weights import NAMES, Weights, count_words
from bnce.serve.batching import Batcher
from bnce.serve.limits import Limits, RefusedError, refuse_many
from bnce.serve.messages import NextRequest, RescoreRequest, ScoreRequest, Utterance
from bnce.serve.metrics import Metrics
from bnce.serve.questions import HypothesesQuestion, NextQuestion, SentenceQuestion

# Characters, or words, that are dealt with before a thread would have begun.
SHORT_CHARACTERS = 10_000
SHORT_WORDS = 500
# Words that cutting a text in two can make of one: with an apostrophe, don't falls into three.
WORDS_BY_CUT = 2


class _Cut(NamedTuple):
    """Sentences as the model reads them; beside each, which text it comes from."""

    sources: list[int]
    words: list[list[str]]

    @property
    def num_words(self) -> int:
        """Count words and sentence ends."""
        return sum(map(len, self.words)) + len(self.words)


class Service:
    """Answers the requests for one model; answers are JSON."""

    def __init__(
        self, model: Model, run: str, limits: Limits, batcher: Batcher, metrics: Metrics, side_thread: Executor
    ) -> None:
        self.model, self.run, self.limits, self.batcher, self.metrics = model, run, limits, batcher, metrics
        self._side_thread = side_thread
        # Read once: a mixture looks its words up in a file.
        self._log_z, self._vocab_size = model.log_z, model.vocab_size

    def health(self) -> str:
        """Say what is served."""
        record = {
            "status": "ok",
            "run": self.run,
            "kind": self.model.kind,
            "vocab_size": self._vocab_size,
            "self_normalised": self.model.self_normalised,
            "log_z": self._log_z,
            "device": self.model.device,
            "max_words": self.limits.max_words,
            "max_exact_words": self.limits.max_exact_words,
            "max_sentence_words": self.limits.max_sentence_words,
            "max_next": self.limits.max_next,
        }
        return files.to_json(record)

    def _refuse_unnormalised(self, field: str) -> None:
        """Refuse a mode that the model does not have, in the words of a request."""
        if not self.model.self_normalised:
            raise RefusedError(422, f"The model was trained with the softmax and has no constant Z: send {field}.")

    async def score(self, request: ScoreRequest) -> str:
        """Score sentences, with the constant, with the softmax, or with both."""
        given = request.sentences if request.texts is None else request.texts
        if given is None or (request.sentences is not None and request.texts is not None):
            raise RefusedError(
                422, "Give either 'sentences' (each string one sentence) or 'texts' (cut into sentences)."
            )
        normalised = request.mode == "normalised"
        if not normalised:
            self._refuse_unnormalised('"mode": "normalised"')
        if request.spell:
            self.model.refuse_spelling()
        cut = await self._cut(given, split=request.texts is not None)
        refuse_many("sentences", len(cut.words), self.limits.max_sentences)
        modes = [False, True] if request.exact and not normalised else [normalised]
        self._check_sizes(cut, exact=modes[-1])
        questions = [SentenceQuestion(words, mode, spell=request.spell) for mode in modes for words in cut.words]
        scores = await self._ask(questions, cut.num_words)

        def write() -> str:
            num = len(cut.words)
            parts = (scores[place * num : (place + 1) * num] for place in range(len(modes)))
            scored = [list(map(ScoredSentence.of, cut.words, part)) for part in parts]
            return files.to_json(self._score_record(request.mode, cut.sources, *scored))

        return await self._write(write, cut.num_words)

    async def rescore(self, request: RescoreRequest) -> str:
        """Score the hypotheses of utterances anew, each shared prefix once, and find the best of each."""
        normalised = request.mode == "normalised"
        if not normalised:
            self._refuse_unnormalised('"mode": "normalised"')
        texts = [hypothesis.text for utterance in request.utterances for hypothesis in utterance.hypotheses]
        cut = await self._cut(texts)
        self._check_sizes(cut, exact=normalised)
        words, questions = iter(cut.words), []
        for utterance in request.utterances:
            question = HypothesesQuestion(list(islice(words, len(utterance.hypotheses))), normalised)
            questions += question.pieces(self.limits.max_batch)
        pieces = await self._ask(questions, cut.num_words)
        weights = Weights(**{name: getattr(request, name) for name in NAMES})

        def write() -> str:
            scores = (one for piece in pieces for one in piece)
            rescored = [_rescored(weights, utterance, scores) for utterance in request.utterances]
            return files.to_json({"mode": request.mode, "utterances": rescored})

        return await self._write(write, cut.num_words)

    async def next_words(self, request: NextRequest) -> str:
        """Find the likeliest next words."""
        if request.k > self.limits.max_next:
            raise RefusedError(422, f"k is {request.k}: this server returns at most {self.limits.max_next} next words.")
        if not request.normalised:
            self._refuse_unnormalised('"normalised": true')
        cut = await self._cut([request.prompt])
        self._check_sizes(cut, exact=False)
        (words,) = cut.words
        (found,) = await self._ask([NextQuestion(words, request.k, request.normalised)], cut.num_words)
        next_words = [dataclasses.asdict(word) for word in found]
        return files.to_json({"words": words, "normalised": request.normalised, "next": next_words})

    async def _ask(
        self, questions: Sequence[SentenceQuestion | HypothesesQuestion | NextQuestion], num_words: int
    ) -> list[Any]:
        answers = await self.batcher.ask(questions, num_words)
        self.metrics.num_words += num_words
        return answers

    async def _cut(self, texts: Sequence[str], split: bool = False) -> _Cut:
        """Cut texts into sentences of words."""
        if sum(map(len, texts)) <= SHORT_CHARACTERS:
            return self._cut_now(texts, split)
        return await asyncio.get_running_loop().run_in_executor(self._side_thread, self._cut_long, texts, split)

    def _cut_long(self, texts: Sequence[str], split: bool) -> _Cut:
        # Between blanks there is a word at least.
        least = sum(len(text.split()) for text in texts)
        refuse_many("words or more", least, self.limits.max_words)
        self.batcher.refuse_if_full(least)
        for text in (text for text in texts if len(text) > SHORT_CHARACTERS):
            self._refuse_dense(text, self.limits.max_words if split else self.limits.max_sentence_words)
        return self._cut_now(texts, split)

    def _refuse_dense(self, text: str, limit: int) -> None:
        """Refuse a long text of too many words without blanks, such as marks, before all of it is cut at once."""
        least = 0
        for begin in range(0, len(text), SHORT_CHARACTERS):
            least += sum(map(len, self.model.normaliser(text[begin : begin + SHORT_CHARACTERS]))) - 2 * WORDS_BY_CUT
            refuse_many("words or more in one text", least, limit)

    def _cut_now(self, texts: Sequence[str], split: bool) -> _Cut:
        cut = _Cut([], [])
        num_words = 0
        for number, text in enumerate(texts):
            lines = (self.model.normaliser(line) for line in text.splitlines()) if split else [[self.model.words(text)]]
            for words in (words for line in lines for words in line):
                num_words += len(words)
                refuse_many("words or more", num_words, self.limits.max_words)
                cut.sources.append(number)
                cut.words.append(words)
        return cut

    def _check_sizes(self, cut: _Cut, exact: bool) -> None:
        """Refuse too long sentences, and too many words for the softmax."""
        refuse_many("words in one sentence", max(map(len, cut.words), default=0), self.limits.max_sentence_words)
        if exact:
            refuse_many("words for normalised probabilities", sum(map(len, cut.words)), self.limits.max_exact_words)

    async def _write(self, write: Callable[[], str], num_words: int) -> str:
        if num_words <= SHORT_WORDS:
            return write()
        return await asyncio.get_running_loop().run_in_executor(self._side_thread, write)

    def _score_record(
        self,
        mode: str,
        sources: list[int],
        scored: list[ScoredSentence],
        exact: list[ScoredSentence] | None = None,
    ) -> dict[str, Any]:
        sentences: list[dict[str, Any]] = [
            {"text": source, **sentence.to_dict()} for source, sentence in zip(sources, scored, strict=True)
        ]
        answer = {
            "mode": mode,
            "log_base": 10,
            "log_z": None if mode == "normalised" else self._log_z,
            "sentences": sentences,
            "totals": Totals.of(scored).to_dict(),
        }
        if exact is None:
            return answer
        for sentence, truth in zip(sentences, exact, strict=True):
            sentence["exact_log10_probs"] = truth.log10_probs.tolist()
            sentence["exact_log10_prob"] = truth.log10_prob
        answer["exact_totals"] = Totals.of(exact).to_dict()
        # A mixture has several constants, and no one normaliser.
        if self._log_z is None:
            return {**answer, "log_z_mean": None}
        log_zs = [np.zeros(0)]
        for sentence, own, truth in zip(sentences, scored, exact, strict=True):
            # Both kinds of probability have the same score above ln Z(context).
            log_zs.append(self._log_z + (own.log10_probs - truth.log10_probs) * math.log(10))
            sentence["log_z"] = log_zs[-1].tolist()
        every = np.concatenate(log_zs)
        return {**answer, "log_z_mean": float(every.mean()) if len(every) else None}


def _rescored(weights: Weights, utterance: Utterance, scores: Iterator[WordScores]) -> dict[str, Any]:
    """Write up an utterance with the next of the scores."""
    hypotheses: list[dict[str, Any]] = []
    for place, given in enumerate(utterance.hypotheses, 1):
        score = next(scores)
        new_lm, num_words, num_oov = float(score.log_probs.sum()), count_words(given.text), int(score.oov.sum())
        hypotheses.append(
            {
                "text": given.text,
                "am": given.am,
                "lm": given.lm,
                "new_lm": new_lm,
                "num_words": num_words,
                "num_oov": num_oov,
                "total": weights.total(given.am, given.lm, new_lm, num_words, num_oov, math.log(place)),
            }
        )
    totals = [hypothesis["total"] for hypothesis in hypotheses]
    return {"id": utterance.id, "best": totals.index(max(totals)), "hypotheses": hypotheses}
