"""Questions of many requests, put to the model together: a queue, batches, and the one thread that answers them.

A batch takes one question of each waiting request in turn, the oldest first, until it is full. So a short request is
with the model in the next batch however many long ones wait, and a long one makes progress in every batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Gauge, Histogram
from starlette.exceptions import HTTPException

from bnce.engine.network import Mode

# Costs are in words. One that needs the softmax passes over the vocabulary, and others must not wait for thousands.
EXACT_COST = 16
MAX_BATCH = 2**12
MAX_REQUEST = 2**16
MAX_WAITING = 2**19  # of all requests that wait or are with the model; one request alone always fits
WAIT_SECONDS = 0.003  # in which others can join a request


class Kind(NamedTuple):
    """What is asked; questions of one kind go through the model together."""

    what: str  # "sentences"; those in "both modes"; "hypotheses", which share prefixes; "next" words
    mode: Mode
    spell: bool = False
    num_next: int = 0


class Question(NamedTuple):
    """Lists of words, each to be answered."""

    kind: Kind
    texts: list[list[str]]

    @property
    def cost(self) -> int:
        """How much of a batch it takes up."""
        num_words = sum(map(len, self.texts)) + len(self.texts)
        if self.kind.what == "next":  # after the last word alone, but always
            return num_words + EXACT_COST
        needs_softmax = self.kind.mode == "normalised" or self.kind.what == "both modes"
        return num_words * (EXACT_COST if needs_softmax else 1)


Answer = Callable[[Kind, list[list[str]]], Sequence[Any]]
Asked = tuple[Question, "asyncio.Future[list[Any]]"]


class Batcher:
    """Gathers questions for a few milliseconds, or while the model is busy, and asks them together."""

    def __init__(self, answer: Answer, registry: CollectorRegistry) -> None:
        self._answer = answer
        self._requests: deque[deque[Asked]] = deque()  # the questions of each that have not been asked
        self._cost = 0
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._waiting = Gauge("bnce_waiting_requests", "Requests that wait or are with the model.", registry=registry)
        bounds = [2**power for power in range(13)]
        self._sizes = Histogram(
            "bnce_batch_questions", "Parts of requests per pass.", registry=registry, buckets=bounds
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer as long as the block runs; a batch that is with the model is waited for."""
        work = asyncio.create_task(self._work())
        try:
            yield
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            self._thread.shutdown()

    async def ask(self, questions: Sequence[Question]) -> list[Any]:
        """Wait for what the model says of every text of a request's questions."""
        cost = sum(question.cost for question in questions)
        if cost > MAX_REQUEST:
            told = f"{MAX_REQUEST:,} words, or {MAX_REQUEST // EXACT_COST:,} with the softmax"
            raise HTTPException(413, f"The request has more than {told}: send several requests.")
        if self._cost and self._cost + cost > MAX_WAITING:
            told = "The server is busy with other requests: try again in a second."
            raise HTTPException(503, told, {"retry-after": "1"})
        loop = asyncio.get_running_loop()
        asked: deque[Asked] = deque((question, loop.create_future()) for question in questions)
        answers = [answer for _, answer in asked]
        if asked:
            self._requests.append(asked)
            self._arrived.set()
        self._cost += cost
        try:
            with self._waiting.track_inprogress():
                return [each for part in await asyncio.gather(*answers) for each in part]
        finally:
            self._cost -= cost
            for answer in answers:
                answer.cancel()  # of a request that has failed, what is still to be asked

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._requests:
                self._arrived.clear()
                await self._arrived.wait()
                await asyncio.sleep(WAIT_SECONDS)
            batch = self._take()
            self._sizes.observe(len(batch))
            found = await loop.run_in_executor(self._thread, self._answer_all, [question for question, _ in batch])
            for (_, answer), value in zip(batch, found, strict=True):
                if answer.done():
                    continue
                if isinstance(value, Exception):
                    answer.set_exception(value)
                else:
                    answer.set_result(value)

    def _take(self) -> list[Asked]:
        """Take a question of each request in turn until the batch is full, but none that nobody waits for."""
        batch: list[Asked] = []
        cost = 0
        while self._requests and cost < MAX_BATCH:
            request = self._requests.popleft()
            question, answer = request.popleft()
            if not answer.done():
                batch.append((question, answer))
                cost += question.cost
            if request:
                self._requests.append(request)
        return batch

    def _answer_all(self, questions: Sequence[Question]) -> list[Any]:
        """Answer in the order of the questions, each kind in one pass; an error is the answer to its own kind alone."""
        answers: list[Any] = [None] * len(questions)
        for kind in dict.fromkeys(question.kind for question in questions):
            places = [place for place, question in enumerate(questions) if question.kind == kind]
            try:
                found = iter(self._answer(kind, [text for place in places for text in questions[place].texts]))
                for place in places:
                    answers[place] = [next(found) for _ in questions[place].texts]
            except Exception as error:
                for place in places:
                    answers[place] = error
        return answers
