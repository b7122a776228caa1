"""Questions of several requests are asked together, in turn, and no more of them than fit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from bnce.serve.batching import Batcher
from bnce.serve.limits import Limits, RefusedError
from bnce.serve.metrics import Metrics
from bnce.serve.questions import Question, SentenceQuestion


@dataclass(frozen=True, eq=False)
class NumberedQuestion(SentenceQuestion):
    """A sentence, `</s>` counted, of which nothing but its number and its length matters."""

    number: int


class Recorder:
    """Answers a question with its own number, when it is let, and remembers the batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def answer(self, questions: Sequence[Question]) -> list[Any]:
        assert self.may_answer.wait(10)
        ids = [question.number for question in questions if isinstance(question, NumberedQuestion)]
        self.batches.append(ids)
        if 14 in ids:
            raise MemoryError
        return [ValueError("bad luck") if number == 13 else number for number in ids]


def questions(*ids: int, length: int = 1) -> list[NumberedQuestion]:
    return [NumberedQuestion(["w"] * (length - 1), False, number) for number in ids]


def with_batcher(**changes: float) -> Callable[[Callable[[Batcher, Recorder], Awaitable[None]]], Callable[[], None]]:
    """Let a test talk to a batcher, and let or not let its questions be answered."""
    limits = Limits(**{"max_batch": 100, "max_wait_ms": 20, "max_waiting": 4, "max_waiting_words": 100, **changes})

    def decorate(test: Callable[[Batcher, Recorder], Awaitable[None]]) -> Callable[[], None]:
        async def scenario() -> None:
            recorder = Recorder()
            batcher = Batcher(recorder.answer, Metrics(), limits)
            await batcher.start()
            try:
                async with asyncio.timeout(20):
                    await test(batcher, recorder)
            finally:
                recorder.may_answer.set()
                await batcher.stop()

        return lambda: asyncio.run(scenario())

    return decorate


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


@with_batcher()
async def test_requests_that_arrive_together_are_asked_together(batcher: Batcher, recorder: Recorder) -> None:
    answers = await asyncio.gather(*(batcher.ask(questions(number, number + 10), 2) for number in range(3)))
    assert answers == [[0, 10], [1, 11], [2, 12]]
    assert [sorted(batch) for batch in recorder.batches] == [[0, 1, 2, 10, 11, 12]]
    assert batcher.num_waiting == 0
    assert await batcher.ask([], 0) == []


@with_batcher(max_batch=4, max_wait_ms=0)
async def test_a_long_request_lets_a_short_one_through(batcher: Batcher, recorder: Recorder) -> None:
    recorder.may_answer.clear()
    long = asyncio.create_task(batcher.ask(questions(*range(100, 140)), 40))
    await until(lambda: batcher.num_waiting == 1)
    short = asyncio.create_task(batcher.ask(questions(1), 1))
    await until(lambda: batcher.num_waiting == 2)
    recorder.may_answer.set()
    assert await short == [1]
    assert not long.done()
    assert await long == list(range(100, 140))
    assert all(len(batch) <= 4 for batch in recorder.batches)


@with_batcher(max_batch=8, max_wait_ms=0, max_waiting=100, max_waiting_words=10**6)
async def test_a_short_request_does_not_wait_for_many_long_ones(batcher: Batcher, recorder: Recorder) -> None:
    """Half of every batch is for those with the least to ask, and half for the one that has waited longest."""
    recorder.may_answer.clear()
    first = asyncio.create_task(batcher.ask(questions(1), 1))
    await until(lambda: batcher._thread._work_queue.empty() and not batcher._waiting)
    begins = range(100, 2000, 100)
    long = [asyncio.create_task(batcher.ask(questions(*range(at, at + 40)), 40)) for at in begins]
    await until(lambda: batcher.num_waiting == 1 + len(long))
    short = asyncio.create_task(batcher.ask(questions(2), 1))
    await until(lambda: batcher.num_waiting == 2 + len(long))
    recorder.may_answer.set()
    assert await short == [2]
    assert await first == [1]
    answers = await asyncio.gather(*long)
    assert answers == [list(range(at, at + 40)) for at in begins]
    assert 2 in recorder.batches[1]
    # Of two equally long ones the older ends first.
    ends = [next(n for n, batch in enumerate(recorder.batches) if at + 39 in batch) for at in begins]
    assert ends == sorted(ends)
    assert all(len(batch) <= 8 for batch in recorder.batches)


@with_batcher(max_batch=8, max_wait_ms=0, max_waiting=100, max_waiting_words=10**6)
async def test_short_requests_without_end_do_not_stop_a_long_one(batcher: Batcher, recorder: Recorder) -> None:

    async def ask_on() -> None:
        while not long.done():
            await batcher.ask(questions(3), 1)

    long = asyncio.create_task(batcher.ask(questions(*range(100, 140)), 40))
    await asyncio.gather(*(ask_on() for _ in range(30)))
    assert await long == list(range(100, 140))
    # Four of its questions in each batch at least.
    last = next(number for number, batch in enumerate(recorder.batches) if 139 in batch)
    assert last <= 11


@with_batcher(max_batch=8, max_wait_ms=0, max_waiting_words=10**6)
async def test_a_question_larger_than_a_batch_goes_alone_and_in_turn(batcher: Batcher, recorder: Recorder) -> None:
    recorder.may_answer.clear()
    first = asyncio.create_task(batcher.ask(questions(1), 1))
    await until(lambda: batcher._thread._work_queue.empty() and not batcher._waiting)
    large = asyncio.create_task(batcher.ask(questions(101, 102, length=9), 18))
    await until(lambda: batcher.num_waiting == 2)
    short = [asyncio.create_task(batcher.ask(questions(number), 1)) for number in (2, 3)]
    await until(lambda: batcher.num_waiting == 4)
    recorder.may_answer.set()
    assert await asyncio.gather(first, large, *short) == [[1], [101, 102], [2], [3]]
    assert recorder.batches == [[1], [2, 3], [101], [102]]


@with_batcher()
async def test_a_full_queue_refuses_at_once_and_recovers(batcher: Batcher, recorder: Recorder) -> None:
    recorder.may_answer.clear()
    waiting = [asyncio.create_task(batcher.ask(questions(number), 1)) for number in range(4)]
    await until(lambda: batcher.num_waiting == 4)
    with pytest.raises(RefusedError) as refused:
        await batcher.ask(questions(5), 1)
    assert (refused.value.status, refused.value.retry_seconds) == (503, 1)
    recorder.may_answer.set()
    assert await asyncio.gather(*waiting) == [[0], [1], [2], [3]]
    # A request that is alone always fits; beside another its words count.
    long, other = batcher.ask(questions(5), 101), batcher.ask(questions(6), 1)
    answer, refusal = await asyncio.gather(long, other, return_exceptions=True)
    assert answer == [5]
    assert isinstance(refusal, RefusedError)


@with_batcher()
async def test_what_nobody_waits_for_is_not_asked(batcher: Batcher, recorder: Recorder) -> None:
    recorder.may_answer.clear()
    first = asyncio.create_task(batcher.ask(questions(1), 1))
    await until(lambda: batcher.num_waiting == 1 and not batcher._waiting)  # it is with the model
    given_up = asyncio.create_task(batcher.ask(questions(2), 1))
    await until(lambda: batcher.num_waiting == 2)
    given_up.cancel()
    await asyncio.wait([given_up])
    recorder.may_answer.set()
    assert await first == [1]
    assert await batcher.ask(questions(3), 1) == [3]
    assert recorder.batches == [[1], [3]]


@with_batcher()
async def test_an_error_is_for_its_own_request(batcher: Batcher, recorder: Recorder) -> None:
    good, bad = await asyncio.gather(
        batcher.ask(questions(1, 2), 2), batcher.ask(questions(13, 3), 2), return_exceptions=True
    )
    assert good == [1, 2]
    assert isinstance(bad, ValueError)
    with pytest.raises(MemoryError):
        await batcher.ask(questions(14), 1)
    assert await batcher.ask(questions(4), 1) == [4]
