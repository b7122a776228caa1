"""Names, tokens, bodies that are slow or large, and answers that take too long."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message, Receive, Scope, Send

from bnce.serve import guard as guarding
from bnce.serve.guard import Guard, is_own_name

JSON = [(b"content-type", b"application/json"), (b"host", b"localhost")]
TOKEN = "0123456789abcdef"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "MAX_BODY_BYTES", 10)
    monkeypatch.setattr(guarding, "REQUEST_SECONDS", 0.3)


@dataclass
class Client:
    """One request by hand: chunks of a body, and what happens when there are no more."""

    chunks: list[bytes]
    then: str = "end"  # or: stall, more
    headers: list[tuple[bytes, bytes]] = field(default_factory=lambda: JSON)
    sent: list[Message] = field(default_factory=list)
    num_received: int = 0

    async def receive(self) -> Message:
        self.num_received += 1
        if self.chunks:
            more = len(self.chunks) > 1 or self.then != "end"
            return {"type": "http.request", "body": self.chunks.pop(0), "more_body": more}
        if self.then == "more":
            return {"type": "http.request", "body": b"x" * 2**20, "more_body": True}
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
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    if body[:1].isdigit():
        await asyncio.sleep(int(body[:1]))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def talk(*clients: Client, token: str | None = None, path: str = "/score") -> None:
    """Let clients talk to one server at the same time."""
    guard = Guard(echo, ["lm.example.org"], token, {"/"}, CollectorRegistry())
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path}

    async def all_of_them() -> None:
        calls = (guard({**scope, "headers": client.headers}, client.receive, client.send) for client in clients)
        async with asyncio.timeout(10):
            await asyncio.gather(*calls)

    asyncio.run(all_of_them())


def test_a_body_in_pieces_arrives_whole() -> None:
    client = Client([b"ab", b"", b"cdefgh", b"ij"])
    talk(client)
    assert (client.status, client.sent[1]["body"]) == (200, b"abcdefghij")
    assert b"default-src 'none'" in client.answer_headers[b"content-security-policy"]


def test_what_is_slow_is_refused_and_disturbs_nobody() -> None:
    clients = [Client([b"ab"], "stall"), Client([b"9"]), Client([b"abc"])]
    talk(*clients)
    assert [client.status for client in clients] == [504, 504, 200]
    assert clients[0].detail == "The request was not sent and answered within 0.3 seconds: send less at once."
    assert clients[0].answer_headers[b"connection"] == b"close"


@pytest.mark.parametrize(("chunks", "then"), [([b"x" * 11], "end"), ([b"x" * 6, b"y" * 6], "end"), ([b"x"], "more")])
def test_a_large_body_is_refused(chunks: list[bytes], then: str) -> None:
    client = Client(chunks, then)
    talk(client)
    assert (client.status, client.detail) == (413, "The body is larger than 10 bytes: send several requests.")
    assert client.sent[-1] == {"type": "http.response.body", "body": b""}
    assert client.num_received < 20  # it is read on for a while, but not without end


def test_a_declared_large_body_is_refused_before_it_is_asked_for() -> None:
    """With 'Expect: 100-continue' a client waits to be told whether to send its body."""
    client = Client([b"x" * 11], headers=[*JSON, (b"content-length", b"11")])
    answered_after: list[int] = []

    async def send(message: Message) -> None:
        answered_after.append(client.num_received)
        client.sent.append(message)

    client.send = send  # type: ignore[method-assign]
    talk(client)
    assert client.status == 413
    assert answered_after[:2] == [0, 0]


def test_only_json_is_taken() -> None:
    form, nothing, loud = (
        Client([b"a=b"], headers=[(b"content-type", b"application/x-www-form-urlencoded"), JSON[1]]),
        Client([b"{}"], headers=JSON[1:]),
        Client([b"{}"], headers=[(b"content-type", b"Application/JSON;charset=utf-8"), JSON[1]]),
    )
    talk(form, nothing, loud)
    assert (form.status, nothing.status, loud.status) == (415, 415, 200)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (b"Bearer 0123456789abcdef", 200),
        (b"", 401),
        (b"Bearer", 401),
        (b"Bearer 0123456789abcde", 401),
        (b"Bearer 0123456789abcdef0", 401),
        (b"Basic 0123456789abcdef", 401),
        (b"Bearer \xff\xfe", 401),
    ],
)
def test_a_token_is_compared_whole(given: bytes, status: int) -> None:
    client = Client([b"abc"], headers=[*JSON, (b"authorization", given)])
    talk(client, token=TOKEN)
    assert client.status == status
    if status == 401:
        assert client.answer_headers[b"www-authenticate"] == b'Bearer realm="bnce"'
        client = Client([b"abc"], headers=[*JSON, (b"authorization", given)])
        talk(client, token=TOKEN, path="/")  # the page is no secret
        assert client.status == 200


@pytest.mark.parametrize(
    ("names", "own", "foreign"),
    [
        (
            [],
            ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "localhost.", "a.localhost", "[::1]:80", "10.0.0.7"],
            ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "*", "evillocalhost", "999.0.0.1"],
        ),
        (["lm.example.org"], ["LM.example.org:8000", "192.0.2.7"], ["a.lm.example.org", "example.org"]),
        (["*.example.net"], ["a.example.net", "a.b.example.net"], ["example.net", "badexample.net"]),
        (["*"], ["evil.example", "192.0.2.7", "localhost"], []),
    ],
)  # fmt: skip
def test_names(names: list[str], own: list[str], foreign: list[str]) -> None:
    assert [host for host in own if not is_own_name(host, names)] == []
    assert [host for host in foreign if is_own_name(host, names)] == []


def test_a_foreign_name_is_refused() -> None:
    client = Client([b"abc"], headers=[JSON[0], (b"host", b"elsewhere.example")])
    talk(client)
    assert (client.status, client.detail[:41]) == (421, "'elsewhere.example' is not a name of this")
