"""Questions of many requests, put to the model together: a queue, batches, and the one thread that answers them.

A request's questions are taken in turn with those of others, so a long request delays a short one by a batch at most.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bnce.use.serve.limits import RefusedError
from bnce.use.serve.metrics import Metrics
from bnce.use.serve.questions import Question

Answer = Callable[[Sequence[Question]], list[Any]]


class _Request:
    """The questions of one request, those answered and those still to be asked."""

    def __init__(self, questions: Sequence[Question], answered: asyncio.Future[list[Any]]) -> None:
        self.questions, self.answered = questions, answered
        self.answers: list[Any] = [None] * len(questions)
        self.num_taken = 0
        self.num_left = len(questions)

    def put(self, place: int, answer: Any) -> None:
        """Take one answer; the last one, or the first error, ends the waiting."""
        self.answers[place] = answer
        self.num_left -= 1
        if self.answered.done():
            return
        if isinstance(answer, Exception):
            self.answered.set_exception(answer)
        elif not self.num_left:
            self.answered.set_result(self.answers)


class Batcher:
    """Gathers questions for a few milliseconds, or while the model is busy, and asks them together."""

    def __init__(
        self,
        answer: Answer,
        metrics: Metrics,
        *,
        max_batch_words: int,
        max_wait_seconds: float,
        max_waiting: int,
        max_waiting_words: int,
    ) -> None:
        self._answer, self._metrics = answer, metrics
        self._max_batch_words, self._max_wait_seconds = max_batch_words, max_wait_seconds
        self._max_waiting, self._max_waiting_words = max_waiting, max_waiting_words
        self._turns: deque[_Request] = deque()
        self._num_waiting = self._num_words = 0
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._task: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        """How many requests wait for the model or are with it."""
        return self._num_waiting

    async def start(self) -> None:
        """Begin to answer."""
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """End the work; a batch that is with the model is waited for."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown()

    def refuse_if_full(self, num_words: int) -> None:
        """Refuse where a request with so many words would not be taken; one that would be alone always is."""
        is_long = self._num_words + num_words > self._max_waiting_words
        if self._num_waiting >= self._max_waiting or (self._num_waiting and is_long):
            raise RefusedError(503, "The server has more requests than it takes at a time: try again in a second.", 1)

    async def ask(self, questions: Sequence[Question], num_words: int) -> list[Any]:
        """Wait for the answers to a request's questions; a full queue refuses at once."""
        if not questions:
            return []
        self.refuse_if_full(num_words)
        request = _Request(questions, asyncio.get_running_loop().create_future())
        self._turns.append(request)
        self._num_waiting += 1
        self._num_words += num_words
        self._arrived.set()
        try:
            return await request.answered
        finally:
            self._num_waiting -= 1
            self._num_words -= num_words

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            if self._num_questions_cost() < self._max_batch_words:
                await asyncio.sleep(self._max_wait_seconds)
            batch = self._take()
            if not batch:
                continue
            questions = [request.questions[place] for request, place in batch]
            self._metrics.batch_questions.observe(len(questions))
            try:
                answers = await loop.run_in_executor(self._thread, self._answer, questions)
            except Exception as error:
                # Those of this batch are told; the next batch is another matter.
                answers = [error] * len(batch)
            for (request, place), answer in zip(batch, answers, strict=True):
                request.put(place, answer)

    def _num_questions_cost(self) -> int:
        """Add up what is to be asked, no further than a batch goes."""
        cost = 0
        for request in self._turns:
            for question in request.questions[request.num_taken :]:
                cost += question.cost
                if cost >= self._max_batch_words:
                    return cost
        return cost

    def _take(self) -> list[tuple[_Request, int]]:
        """Take questions until the batch is full, one of each request in turn; those nobody waits for are dropped."""
        batch = []
        room = self._max_batch_words
        while self._turns and room > 0:
            request = self._turns.popleft()
            if request.answered.done():
                continue
            batch.append((request, request.num_taken))
            room -= request.questions[request.num_taken].cost
            request.num_taken += 1
            if request.num_taken < len(request.questions):
                self._turns.append(request)
        if not self._turns:
            self._arrived.clear()
        return batch
