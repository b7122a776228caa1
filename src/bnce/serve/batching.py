"""Questions of many requests, put to the model together: a queue, batches, and the one thread that answers them.

Half of a batch is for the requests that have the least left to ask, so however many long ones wait, a short one is with
the model in the next batch. The other half is for the request that has waited longest, so no long one waits for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bnce.serve.limits import Limits, RefusedError
from bnce.serve.metrics import Metrics
from bnce.serve.questions import Question

Answer = Callable[[Sequence[Question]], list[Any]]


class _Request:
    """The questions of one request, those answered and those still to be asked."""

    def __init__(self, questions: Sequence[Question], answered: asyncio.Future[list[Any]]) -> None:
        self.questions, self.answered = questions, answered
        self.answers: list[Any] = [None] * len(questions)
        self.costs = [question.cost for question in questions]
        self.cost_left = sum(self.costs)  # of those still to be asked
        self.num_taken = 0
        self.num_left = len(questions)  # to be answered

    @property
    def is_open(self) -> bool:
        """Tell whether there is something to ask for somebody who waits."""
        return self.num_taken < len(self.questions) and not self.answered.done()

    @property
    def next_cost(self) -> int:
        """Give what the next question takes up of a batch."""
        return self.costs[self.num_taken]

    def take(self) -> tuple[_Request, int]:
        """Take the next question: its place."""
        place = self.num_taken
        self.num_taken += 1
        self.cost_left -= self.costs[place]
        return self, place

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

    def __init__(self, answer: Answer, metrics: Metrics, limits: Limits) -> None:
        self._answer, self._metrics, self._limits = answer, metrics, limits
        self._waiting: list[_Request] = []  # those with questions to ask, the oldest first
        self.num_waiting = self._num_words = 0  # requests that wait for the model or are with it, and their words
        self._large_is_next = False
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._task: asyncio.Task[None] | None = None

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
        is_long = self._num_words + num_words > self._limits.max_waiting_words
        if self.num_waiting >= self._limits.max_waiting or (self.num_waiting and is_long):
            raise RefusedError(503, "The server is busy with other requests: try again in a second.", 1)

    async def ask(self, questions: Sequence[Question], num_words: int) -> list[Any]:
        """Wait for the answers to a request's questions; a full queue refuses at once."""
        if not questions:
            return []
        self.refuse_if_full(num_words)
        request = _Request(questions, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self.num_waiting += 1
        self._num_words += num_words
        self._arrived.set()
        try:
            return await request.answered
        finally:
            self.num_waiting -= 1
            self._num_words -= num_words

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            if sum(request.cost_left for request in self._waiting) < self._limits.max_batch:
                await asyncio.sleep(self._limits.max_wait_ms / 1000)
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

    def _take(self) -> list[tuple[_Request, int]]:
        """Take the questions of the next batch; those nobody waits for are dropped."""
        self._waiting = [request for request in self._waiting if request.is_open]
        taken = self._choose() if self._waiting else []
        self._waiting = [request for request in self._waiting if request.is_open]
        if not self._waiting:
            self._arrived.clear()
        return taken

    def _choose(self) -> list[tuple[_Request, int]]:
        batch: list[tuple[_Request, int]] = []
        cost, max_cost = 0, self._limits.max_batch

        def fill(requests: Iterable[_Request], share: float) -> None:
            """Take questions of each request in turn until so much of the room is used up; large ones stay out."""
            nonlocal cost
            for request in requests:
                while cost < share * max_cost and request.is_open and request.next_cost <= max_cost:
                    cost += request.next_cost
                    batch.append(request.take())

        oldest = self._waiting[0]
        shortest_first = sorted(self._waiting, key=lambda request: request.cost_left)
        if oldest.next_cost <= max_cost:
            fill(shortest_first, 0.5)
            fill([oldest, *shortest_first], 1.0)
            return batch
        # A question larger than a batch goes alone, so that no other waits until it is answered, and in turn with them.
        if not self._large_is_next:
            fill(shortest_first, 1.0)
        self._large_is_next = bool(batch)
        return batch or [oldest.take()]
