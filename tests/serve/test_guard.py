"""Bodies that are slow, endless or too many, answers that take too long, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from bnce.serve.access import Access
from bnce.serve.guard import Guard, Message, Receive, Scope, Send
from bnce.serve.limits import Limits
from bnce.serve.metrics import Metrics

LIMITS = Limits(max_body_bytes=10, max_held_bytes=25, body_seconds=0.2, request_seconds=0.3)
JSON = [(b"content-type", b"application/json")]


@dataclass
class Client:
    """One request by hand: chunks of a body, and what happens when there are no more."""

    chunks: list[bytes]
    then: str = "end"  # or: stall, leave, more
    headers: list[tuple[bytes, bytes]] = field(default_factory=lambda: JSON)
    sent: list[Message] = field(default_factory=list)

    async def receive(self) -> Message:
        if self.chunks:
            more = len(self.chunks) > 1 or self.then != "end"
            return {"type": "http.request", "body": self.chunks.pop(0), "more_body": more}
        if self.then == "leave":
            await asyncio.sleep(0)
            return {"type": "http.disconnect"}
        if self.then == "more":
            return {"type": "http.request", "body": b"x" * 10, "more_body": True}
        await asyncio.sleep(3600)
        raise AssertionError

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int | None:
        return int(self.sent[0]["status"]) if self.sent else None

    @property
    def answer_headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def detail(self) -> str:
        return str(json.loads(self.sent[1]["body"])["detail"])


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the body, after as many seconds as its first figure says."""
    body = (await receive())["body"]
    if body[:1] == b"!":
        raise RuntimeError("insides")
    if body[:1].isdigit():
        await asyncio.sleep(int(body[:1]))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def talk(*clients: Client, app: Callable[..., Awaitable[None]] = echo, token: str | None = None) -> Metrics:
    """Let clients talk to one server at the same time."""
    metrics = Metrics()
    guard = Guard(app, {"/score"}, LIMITS, metrics, Access(token=token))
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/score"}

    async def all_of_them() -> None:
        calls = (guard({**scope, "headers": client.headers}, client.receive, client.send) for client in clients)
        async with asyncio.timeout(10):
            await asyncio.gather(*calls)
        assert guard._num_held_bytes == 0

    asyncio.run(all_of_them())
    return metrics


def test_a_body_in_pieces_arrives_whole() -> None:
    client = Client([b"ab", b"", b"cdefgh", b"ij"])
    talk(client)
    assert (client.status, client.sent[1]["body"]) == (200, b"abcdefghij")
    assert b"default-src 'none'" in client.answer_headers[b"content-security-policy"]


def test_a_slow_body_is_refused_and_disturbs_nobody() -> None:
    slow, quick = Client([b"ab"], "stall"), Client([b"abc"])
    metrics = talk(slow, quick)
    assert (slow.status, quick.status) == (408, 200)
    assert slow.detail == "The body did not arrive within 0.2 seconds: send it faster."
    assert slow.answer_headers[b"connection"] == b"close"
    assert metrics.requests == {("/score", 408): 1, ("/score", 200): 1}


@pytest.mark.parametrize(("chunks", "then"), [([b"x" * 11], "end"), ([b"x" * 6, b"y" * 6], "end"), ([b"x"], "more")])
def test_a_large_body_is_refused_and_never_held(chunks: list[bytes], then: str) -> None:
    client = Client(chunks, then)
    talk(client)
    assert (client.status, client.detail) == (413, "The body is larger than 10 bytes: send several requests.")


def test_bodies_together_have_a_bound() -> None:
    slow = [Client([b"x" * 9], "stall") for _ in range(4)]
    talk(*slow)
    # Two fit; the third and fourth are told to come back.
    assert sorted(client.status or 0 for client in slow) == [408, 408, 503, 503]
    refused = next(client for client in slow if client.status == 503)
    assert refused.answer_headers[b"retry-after"] == b"1"


def test_an_answer_that_takes_too_long_is_given_up() -> None:
    slow, quick = Client([b"9"]), Client([b"abc"])
    talk(slow, quick)
    assert (slow.status, quick.status) == (504, 200)
    assert slow.detail == "The answer took more than 0.3 seconds: send a smaller request, or try again later."


def test_a_client_that_leaves_ends_the_work() -> None:
    began, ended = asyncio.Event(), list[str]()

    async def work(scope: Scope, receive: Receive, send: Send) -> None:
        began.set()
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    class Leaving(Client):
        async def receive(self) -> Message:
            if self.chunks:
                return {"type": "http.request", "body": self.chunks.pop(0), "more_body": False}
            await began.wait()
            return await super().receive()

    before, during = Client([b"ab"], "leave"), Leaving([b"abc"], "leave")
    metrics = talk(before, during, app=work)
    assert before.sent == during.sent == []
    assert ended == ["cancelled"]
    assert metrics.requests == {("/score", 499): 2}


def test_a_failure_is_one_sentence_for_the_client_and_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    client = Client([b"!"])
    with caplog.at_level(logging.INFO, "bnce.serve"):
        talk(client)
    assert (client.status, client.detail) == (500, "The server failed; see its log.")
    assert [record.getMessage() for record in caplog.records] == ["'/score' failed: RuntimeError: insides"]
    assert caplog.records[0].exc_info is None


def test_only_json_is_taken() -> None:
    form, nothing, loud = (
        Client([b"a=b"], headers=[(b"content-type", b"application/x-www-form-urlencoded")]),
        Client([b"{}"], headers=[]),
        Client([b"{}"], headers=[(b"content-type", b"Application/JSON;charset=utf-8")]),
    )
    talk(form, nothing, loud)
    assert (form.status, nothing.status, loud.status) == (415, 415, 200)


def test_nothing_is_held_of_those_who_may_not_ask() -> None:
    token = "0123456789abcdef"
    known = [*JSON, (b"authorization", b"Bearer 0123456789abcdef")]
    good, bad, large = Client([b"abc"], headers=known), Client([b"x" * 9] * 9), Client([b"x"], "more")
    foreign = Client([b"abc"], headers=[*known, (b"host", b"elsewhere.example")])
    talk(good, bad, large, foreign, token=token)
    assert [client.status for client in (good, bad, large, foreign)] == [200, 413, 413, 421]
    bad = Client([b"ab", b"cd"])
    talk(bad, token=token)
    assert (bad.status, bad.answer_headers[b"www-authenticate"]) == (401, b'Bearer realm="bnce"')
    # It was read to its end, so the connection goes on.
    assert b"connection" not in bad.answer_headers
