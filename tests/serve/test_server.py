"""Ports and hosts; tests/cli/test_serve.py has the server as a process."""

from __future__ import annotations

import asyncio
import errno
import gc
import re
import signal
import socket
from typing import Any

import pytest

from bnce import UserError
from bnce.serve.access import is_loopback
from bnce.serve.guard import Receive, Scope, Send
from bnce.serve.limits import Limits
from bnce.serve.metrics import Metrics
from bnce.serve.server import Shortage, fit_to_files, listen, run_server


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
    assert not is_loopback("example.org")


def test_any_free_port() -> None:
    listener, url = listen("127.0.0.1", 0)
    with listener:
        port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)", url).group(1))  # type: ignore[union-attr]
        assert port == listener.getsockname()[1] > 0
        with pytest.raises(UserError, match=rf"Cannot listen on 127.0.0.1:{port} \(Address already in use\): give"):
            listen("127.0.0.1", port)


def test_answers_are_sent_at_once() -> None:
    """asyncio sets TCP_NODELAY where the socket names its protocol, and only there."""
    listener, _ = listen("127.0.0.1", 0)
    with listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_hosts_that_are_not_ours() -> None:
    with pytest.raises(UserError, match="give another host or port"):
        listen("203.0.113.7", 0)
    with pytest.raises(UserError, match="Cannot listen on no such host:0"):
        listen("no such host", 0)


def test_an_ipv6_url_has_brackets() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        listener, url = listen("::1", 0)
    except UserError:
        pytest.skip("no IPv6 loopback here")
    with listener:
        assert url == f"http://[::1]:{listener.getsockname()[1]}"


def test_a_shortage_of_files_is_one_line_and_passes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio tries the port as often as its backlog says, with a traceback each time."""
    accept, num_tries = socket.socket.accept, 0

    def fail(listener: socket.socket) -> tuple[socket.socket, Any]:
        nonlocal num_tries
        num_tries += 1
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("asyncio.constants.ACCEPT_RETRY_DELAY", 0.05)
    monkeypatch.setattr("bnce.serve.server.REST_SECONDS", 0.04)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(Shortage())
        listener, _ = listen("127.0.0.1", 0)
        async with await loop.create_server(asyncio.Protocol, sock=listener, backlog=1024):
            monkeypatch.setattr(socket.socket, "accept", fail)
            _, writer = await asyncio.open_connection(*listener.getsockname())
            while num_tries < 3:
                await asyncio.sleep(0.01)
            monkeypatch.setattr(socket.socket, "accept", accept)
            writer.close()
            loop.call_exception_handler({"message": "something else"})

    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())
    assert num_tries < 10
    told = [record.getMessage() for record in caplog.records]
    assert [line.partition(": allow more files")[0] for line in told] == [
        "New connections wait, because the system cannot open more (Too many open files)",
        "something else",
    ]


def test_connections_fit_the_files_that_are_allowed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changed: list[tuple[int, int]] = []
    allowed = (64, 128)
    monkeypatch.setattr("os.listdir", lambda path: ["0"] * 4)
    monkeypatch.setattr("resource.getrlimit", lambda kind: allowed)
    monkeypatch.setattr("resource.setrlimit", lambda kind, pair: changed.append(pair))
    # As many as fit; then more files; then fewer connections, with a word.
    assert fit_to_files(Limits(max_connections=30)).max_connections == 30
    assert (changed, caplog.records) == ([], [])
    assert fit_to_files(Limits(max_connections=90)).max_connections == 90
    assert (changed, caplog.records) == ([(118, 128)], [])
    assert fit_to_files(Limits(max_connections=900)).max_connections == 100
    assert changed[-1] == (128, 128)
    assert (
        caplog.records[0]
        .getMessage()
        .startswith("Accepting at most 100 connections at a time instead of 900: the system")
    )


def test_what_is_there_at_the_start_is_not_searched_for_garbage_again() -> None:
    """With PyTorch loaded, reading a megabyte of empty lists took 350 ms, and 43 ms with this."""
    frozen: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    def announce() -> None:
        frozen.append(gc.get_freeze_count())
        signal.raise_signal(signal.SIGTERM)

    listener, _ = listen("127.0.0.1", 0)
    try:
        with listener:
            run_server(app, listener, Limits(max_connections=1), Metrics(), announce)
    finally:
        gc.unfreeze()
    assert frozen[0] > 10_000
