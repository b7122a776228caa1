"""Connections by hand, on loopback: bodies in crumbs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from uvicorn.server import ServerState

from bnce.serve.access import Access
from bnce.serve.connection import limited_connections
from bnce.serve.guard import Guard, Receive, Scope, Send
from bnce.serve.limits import Limits
from bnce.serve.metrics import Metrics

LIMITS = Limits(max_body_pieces=100)
HEAD = b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving(metrics: Metrics) -> AsyncIterator[int]:
    """Give the port of a server that echoes."""
    config = uvicorn.Config(Guard(echo, {"/score"}, LIMITS, metrics, Access()), log_config=None, lifespan="off")
    config.load()
    connection, state = limited_connections(LIMITS, metrics), ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: connection(config, state, {}), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*state.tasks)


async def exchange(port: int, *parts: bytes) -> tuple[int, bytes]:
    """Send some bytes, one packet after the other, and read the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await asyncio.sleep(0)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    body = await reader.readexactly(int(length.split(b":")[1]))
    writer.close()
    return int(head.split()[1]), body


def chunked(num_chunks: int) -> bytes:
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n1\r\n" * num_chunks + b"0\r\n\r\n"


def test_a_body_in_crumbs_is_refused_before_it_costs() -> None:
    async def scenario() -> None:
        metrics = Metrics()
        async with serving(metrics) as port:
            assert await exchange(port, chunked(100)) == (200, b"1" * 100)
            begin = time.process_time()
            status, body = await exchange(port, chunked(40_000))
            # A megabyte of them took seconds, in which nobody else was answered.
            assert time.process_time() - begin < 0.4
            told = "The body arrives in more than 100 pieces: send larger chunks."
            assert (status, json.loads(body)) == (400, {"detail": told})
            assert await exchange(port, HEAD, b"Content-Length: 3\r\n\r\n", b"1", b"2", b"3") == (200, b"123")

    asyncio.run(scenario())


def test_a_body_that_stops_being_http_is_told_so() -> None:
    async def scenario() -> None:
        async with serving(Metrics()) as port:
            status, body = await exchange(port, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n1\r\nloud\r\n")
            assert status == 400
            assert json.loads(body)["detail"] == "This is not a valid HTTP/1.1 request."

    asyncio.run(scenario())
