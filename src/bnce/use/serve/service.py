"""What the endpoints do, without HTTP: a request checked against the limits, put to the model, and written up.

Long texts are cut into words, and long answers written, beside the loop: a long request must not keep short ones
waiting.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnce import files
from bnce.use.model import Model
from bnce.use.scored import ScoredSentence, Totals
from bnce.use.scorer import refuse_unnormalised
from bnce.use.serve.batching import Batcher
from bnce.use.serve.limits import Limits, RefusedError
from bnce.use.serve.messages import NextRequest, RescoreRequest, ScoreRequest, Utterance
from bnce.use.serve.metrics import Metrics
from bnce.use.serve.questions import HypothesesQuestion, NextQuestion, SentenceQuestion
from bnce.use.weights import NAMES, Weights, count_words

Floats = NDArray[np.float64]

# Characters, or words, that are dealt with before a thread would have begun.
SHORT_CHARACTERS = 10_000
SHORT_WORDS = 500


class Service:
    """Answers the requests for one model; answers are JSON."""

    def __init__(self, model: Model, run: str, limits: Limits, batcher: Batcher, metrics: Metrics) -> None:
        self.model, self.run, self.limits, self.batcher, self.metrics = model, run, limits, batcher, metrics
        self._log_z = float(model.network.output.log_z)
        self._long_turn = asyncio.Semaphore(1)

    def health(self) -> str:
        """Say what is served."""
        self_normalised = self.model.network.output.normalises
        record = {
            "status": "ok",
            "run": self.run,
            "vocab_size": len(self.model.vocabulary),
            "self_normalised": self_normalised,
            "log_z": self._log_z if self_normalised else None,
            "device": str(self.model.network.embedding.device),
            "max_words": self.limits.max_words,
            "max_exact_words": self.limits.max_exact_words,
            "max_sentence_words": self.limits.max_sentence_words,
            "max_next": self.limits.max_next,
        }
        return files.to_json(record)

    async def score(self, request: ScoreRequest) -> str:
        """Score sentences, with the constant, with the softmax, or with both."""
        given = request.sentences if request.texts is None else request.texts
        if given is None or (request.sentences is not None and request.texts is not None):
            raise RefusedError(
                422, "Give either 'sentences' (each string one sentence) or 'texts' (cut into sentences)."
            )
        normalised = request.mode == "normalised"
        if not normalised:
            refuse_unnormalised(self.model.network)
        _refuse_many("sentences", len(given), self.limits.max_sentences)
        sources, sentences = await self._cut(given, split=request.texts is not None)
        _refuse_many("sentences", len(sentences), self.limits.max_sentences)
        modes = [False, True] if request.exact and not normalised else [normalised]
        num_words = self._count_words(sentences, exact=modes[-1])
        ids = [self.model.encode(words) for words in sentences]
        questions = [SentenceQuestion(numbers, mode) for mode in modes for numbers in ids]
        log_probs = await self._ask(questions, num_words)
        scored = [
            [
                self.model.scored(words, numbers, found)
                for words, numbers, found in zip(sentences, ids, part, strict=True)
            ]
            for part in (log_probs[place * len(ids) : (place + 1) * len(ids)] for place in range(len(modes)))
        ]
        record = functools.partial(self._score_record, request.mode, sources, *scored)
        return await _write(lambda: files.to_json(record()), num_words)

    async def rescore(self, request: RescoreRequest) -> str:
        """Score the hypotheses of utterances anew, each shared prefix once, and find the best of each."""
        normalised = request.mode == "normalised"
        if not normalised:
            refuse_unnormalised(self.model.network)
        num_hypotheses = sum(len(utterance.hypotheses) for utterance in request.utterances)
        _refuse_many("hypotheses", num_hypotheses, self.limits.max_hypotheses)
        texts = [hypothesis.text for utterance in request.utterances for hypothesis in utterance.hypotheses]
        _, hypotheses = await self._cut(texts)
        num_words = self._count_words(hypotheses, exact=normalised)
        left = iter(hypotheses)
        words = [[next(left) for _ in utterance.hypotheses] for utterance in request.utterances]
        questions = [HypothesesQuestion([self.model.encode(one) for one in each], normalised) for each in words]
        answers = await self._ask(questions, num_words)
        weights = Weights(**{name: getattr(request, name) for name in NAMES})

        def write() -> str:
            columns = zip(request.utterances, words, questions, answers, strict=True)
            rescored = [self._rescored(weights, *row) for row in columns]
            return files.to_json({"mode": request.mode, "utterances": rescored})

        return await _write(write, num_words)

    async def next_words(self, request: NextRequest) -> str:
        """Find the likeliest next words."""
        if request.k > self.limits.max_next:
            raise RefusedError(422, f"k is {request.k}: this server gives at most {self.limits.max_next} next words.")
        if not request.normalised:
            refuse_unnormalised(self.model.network)
        _, (words,) = await self._cut([request.prompt])
        num_words = self._count_words([words], exact=False)
        (found,) = await self._ask([NextQuestion(words, request.k, request.normalised)], num_words)
        next_words = [dataclasses.asdict(word) for word in found]
        return files.to_json({"words": words, "normalised": request.normalised, "next": next_words})

    async def _ask(
        self, questions: Sequence[SentenceQuestion | HypothesesQuestion | NextQuestion], num_words: int
    ) -> list[Any]:
        answers = await self.batcher.ask(questions, num_words)
        self.metrics.num_words += num_words
        return answers

    async def _cut(self, texts: Sequence[str], split: bool = False) -> tuple[list[int], list[list[str]]]:
        """Cut texts into sentences of words; beside each, which text it comes from."""

        def cut() -> tuple[list[int], list[list[str]]]:
            sources, sentences = [], []
            for number, text in enumerate(texts):
                lines = (
                    (self.model.normaliser(line) for line in text.splitlines()) if split else [[self.model.words(text)]]
                )
                for words in (words for line in lines for words in line):
                    sources.append(number)
                    sentences.append(words)
            return sources, sentences

        if sum(map(len, texts)) <= SHORT_CHARACTERS:
            return cut()
        # One at a time, and none that the queue would refuse: a flood of long texts leaves time for short ones.
        async with self._long_turn:
            # Between blanks there is a word at least.
            self.batcher.refuse_if_full(sum(len(text.split()) for text in texts))
            return await asyncio.to_thread(cut)

    def _count_words(self, sentences: list[list[str]], exact: bool) -> int:
        """Count words and sentence ends, refusing too many."""
        longest = max(map(len, sentences), default=0)
        _refuse_many("words in one sentence", longest, self.limits.max_sentence_words)
        num_words = sum(map(len, sentences))
        _refuse_many("words", num_words, self.limits.max_words)
        if exact:
            _refuse_many("words for normalised probabilities", num_words, self.limits.max_exact_words)
        return num_words + len(sentences)

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
        log_zs = [self._log_normalisers(one, other) for one, other in zip(scored, exact, strict=True)]
        for sentence, truth, log_z in zip(sentences, exact, log_zs, strict=True):
            sentence["exact_log10_probs"] = truth.log10_probs.tolist()
            sentence["exact_log10_prob"] = truth.log10_prob
            sentence["log_z"] = log_z.tolist()
        every = np.concatenate([np.zeros(0), *log_zs])
        return {
            **answer,
            "exact_totals": Totals.of(exact).to_dict(),
            "log_z_mean": float(every.mean()) if len(every) else None,
        }

    def _log_normalisers(self, scored: ScoredSentence, exact: ScoredSentence) -> Floats:
        """Compute ln Z(context) of every word: both kinds of probability have the same score above it."""
        log_z: Floats = self._log_z + (scored.log10_probs - exact.log10_probs) * math.log(10)
        return log_z

    def _rescored(
        self,
        weights: Weights,
        utterance: Utterance,
        words: list[list[str]],
        question: HypothesesQuestion,
        answers: list[Floats],
    ) -> dict[str, Any]:
        hypotheses: list[dict[str, Any]] = []
        columns = zip(utterance.hypotheses, words, question.sequences, answers, strict=True)
        for given, hypothesis, ids, log_probs in columns:
            scores = self.model.word_scores(hypothesis, ids, log_probs)
            new_lm, num_words, num_oov = float(scores.log_probs.sum()), count_words(given.text), int(scores.oov.sum())
            hypotheses.append(
                {
                    "text": given.text,
                    "am": given.am,
                    "lm": given.lm,
                    "new_lm": new_lm,
                    "num_words": num_words,
                    "num_oov": num_oov,
                    "total": weights.total(given.am, given.lm, new_lm, num_words, num_oov),
                }
            )
        totals = [hypothesis["total"] for hypothesis in hypotheses]
        return {"id": utterance.id, "best": totals.index(max(totals)), "hypotheses": hypotheses}


async def _write(write: Callable[[], str], num_words: int) -> str:
    return write() if num_words <= SHORT_WORDS else await asyncio.to_thread(write)


def _refuse_many(what: str, number: int, limit: int) -> None:
    if number > limit:
        raise RefusedError(
            413, f"The request has {number} {what}: this server takes {limit} at most; send several requests."
        )
