"""Questions of several requests are asked together, in turn, and no more of them than fit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException

from bnce.serve import batcher as batching
from bnce.serve.batcher import Batcher, Kind, Question


class Recorder:
    """Answers a text with its first word, when it is let, and remembers the batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def answer(self, kind: Kind, texts: list[list[str]]) -> Sequence[Any]:
        assert self.may_answer.wait(10)
        self.batches.append([words[0] for words in texts])
        if kind.spell:
            raise MemoryError
        return self.batches[-1]


def questions(*words: object, length: int = 1, spell: bool = False) -> list[Question]:
    """Make questions of one text each, which cost `length` words, `</s>` counted."""
    kind = Kind("sentences", "unnormalised", spell)
    return [Question(kind, [[str(word), *["w"] * (length - 2)]]) for word in words]


def with_batcher(
    test: Callable[[Batcher, Recorder], Awaitable[None]],
) -> Callable[[pytest.MonkeyPatch], None]:
    """Let a test talk to a batcher of small batches, and let or not let its questions be answered."""

    async def scenario() -> None:
        recorder = Recorder()
        batcher = Batcher(recorder.answer, CollectorRegistry())
        async with batcher.running():
            try:
                async with asyncio.timeout(20):
                    await test(batcher, recorder)
            finally:
                recorder.may_answer.set()

    def run(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batching, "MAX_BATCH", 16)
        monkeypatch.setattr(batching, "MAX_REQUEST", 400)
        monkeypatch.setattr(batching, "MAX_WAITING", 500)
        asyncio.run(scenario())

    return run


async def begun(batcher: Batcher, recorder: Recorder, *asked: list[Question]) -> list[asyncio.Task[list[Any]]]:
    """Ask while another question is with the model."""
    recorder.may_answer.clear()
    first = asyncio.create_task(batcher.ask(questions("first")))
    while not batcher._thread._threads or batcher._requests:
        await asyncio.sleep(0.001)
    tasks = [asyncio.create_task(batcher.ask(each)) for each in asked]
    await asyncio.sleep(0.01)
    recorder.may_answer.set()
    return [first, *tasks]


@with_batcher
async def test_requests_that_arrive_together_are_asked_together(batcher: Batcher, recorder: Recorder) -> None:
    answers = await asyncio.gather(*(batcher.ask(questions(number, number + 10)) for number in range(3)))
    assert answers == [["0", "10"], ["1", "11"], ["2", "12"]]
    assert [sorted(batch) for batch in recorder.batches] == [["0", "1", "10", "11", "12", "2"]]
    assert await batcher.ask([]) == []


@with_batcher
async def test_a_short_request_is_in_the_next_batch_and_long_ones_go_on(batcher: Batcher, recorder: Recorder) -> None:
    long = [questions(*(f"{at}.{number}" for number in range(20)), length=4) for at in range(3)]
    tasks = await begun(batcher, recorder, *long, questions("short"))
    assert await tasks[-1] == ["short"]
    assert "short" in recorder.batches[1]
    answers = await asyncio.gather(*tasks[1:-1])
    assert answers == [[f"{at}.{number}" for number in range(20)] for at in range(3)]
    for batch in recorder.batches[1:-1]:
        assert {word.partition(".")[0] for word in batch} >= {"0", "1", "2"}


@with_batcher
async def test_a_question_larger_than_a_batch_is_asked_too(batcher: Batcher, recorder: Recorder) -> None:
    tasks = await begun(batcher, recorder, questions("large", "larger", length=40), questions("a"), questions("b"))
    assert await asyncio.gather(*tasks) == [["first"], ["large", "larger"], ["a"], ["b"]]


@with_batcher
async def test_a_full_queue_refuses_at_once_and_recovers(batcher: Batcher, recorder: Recorder) -> None:
    tasks = await begun(batcher, recorder, questions("a", length=300), questions("b", length=300))
    with pytest.raises(HTTPException) as refused:
        await tasks[-1]
    assert (refused.value.status_code, refused.value.headers) == (503, {"retry-after": "1"})
    assert await tasks[1] == ["a"]
    assert await batcher.ask(questions("b", length=300)) == ["b"]
    with pytest.raises(HTTPException, match="413: The request has more than 400 words, or 25 with the softmax"):
        await batcher.ask(questions("c", length=401))


@with_batcher
async def test_what_nobody_waits_for_is_not_asked(batcher: Batcher, recorder: Recorder) -> None:
    recorder.may_answer.clear()
    first = asyncio.create_task(batcher.ask(questions("first")))
    while not batcher._thread._threads or batcher._requests:
        await asyncio.sleep(0.001)
    given_up = asyncio.create_task(batcher.ask(questions("given up")))
    await asyncio.sleep(0.01)
    given_up.cancel()
    await asyncio.wait([given_up])
    recorder.may_answer.set()
    assert await first == ["first"]
    assert await batcher.ask(questions("next")) == ["next"]
    assert recorder.batches == [["first"], ["next"]]


@with_batcher
async def test_an_error_is_for_its_own_kind(batcher: Batcher, recorder: Recorder) -> None:
    good, bad = await asyncio.gather(
        batcher.ask(questions(1, 2)), batcher.ask(questions(3, 4, spell=True)), return_exceptions=True
    )
    assert good == ["1", "2"]
    assert isinstance(bad, MemoryError)
    assert await batcher.ask(questions(5)) == ["5"]


def test_what_needs_the_softmax_takes_up_more_of_a_batch() -> None:
    texts = [["a", "b"], ["c"]]
    costs = [Question(Kind("sentences", mode), texts).cost for mode in ("unnormalised", "normalised")]
    assert costs == [5, 80]
    assert Question(Kind("next", "unnormalised", num_next=5), [["a", "b"]]).cost == 3 + 16
